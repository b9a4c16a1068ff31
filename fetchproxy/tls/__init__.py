"""TLS towards clients and brokers: contexts from files, reloaded when the files change."""
