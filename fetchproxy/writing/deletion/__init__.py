"""All deletion: from the archive, and of archived records from the brokers."""
