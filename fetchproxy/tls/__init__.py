"""TLS towards clients and towards brokers: contexts made of files, fresh ones when these change."""
