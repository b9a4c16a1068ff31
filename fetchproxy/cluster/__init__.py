"""The proxy's own requests to the brokers, on connections of its own."""
