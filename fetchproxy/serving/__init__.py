"""What listens to clients. `relay` has a cluster behind it, `standalone` an archive alone."""
