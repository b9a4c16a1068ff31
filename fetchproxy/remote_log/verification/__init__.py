"""Metadata, indexes and logs against each other; what is lost and can be derived again."""
