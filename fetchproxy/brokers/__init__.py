"""The proxy's own requests to Kafka's brokers: connections, leaders, messages, groups."""
