"""What an archive without brokers answers, one module per API."""
