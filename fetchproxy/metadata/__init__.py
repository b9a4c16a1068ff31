"""RemoteLogMetadataManager: which segments there are, from the store or the metadata topic."""
