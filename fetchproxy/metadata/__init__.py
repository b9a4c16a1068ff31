"""RemoteLogMetadataManager: which segments there are, by the store or by the metadata topic."""
