"""Adjacent small segments become large ones: what is merged, how it is read, how it is switched."""
