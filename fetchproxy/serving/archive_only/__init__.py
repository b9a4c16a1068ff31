"""An archive without brokers, served as a cluster of one node."""
