"""Checks and repairs of an archive: `verify`, `repair`, `restore`, `resolve` and mirroring."""
