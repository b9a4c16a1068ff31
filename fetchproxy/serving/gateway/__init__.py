"""Between clients and brokers: bytes pass as they arrive, and what the archive has is caught."""
