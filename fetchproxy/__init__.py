"""Tiered storage (KIP-405) for any Kafka cluster, from outside the broker."""

__version__ = "0.1.0"  # as in pyproject.toml; a test compares them
