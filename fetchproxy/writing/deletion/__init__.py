"""Everything that deletes: in the archive, and at the brokers what is archived."""
