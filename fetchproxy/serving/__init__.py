"""What listens to clients. `relay` has a cluster behind it, `archive_only` an archive alone."""
