"""What listens to clients. `gateway` has a cluster behind it, `archive_only` an archive alone."""
