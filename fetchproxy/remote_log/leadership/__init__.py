"""Which partitions this instance leads: all, those of a consumer group, or a broker's own."""
