"""The answers of an archive without brokers, one module per API."""
