"""Puts a lost cluster's topics, groups and rights into a new one, by a leader that exists only for
that long (docs/adr/0087)."""
