"""The read side of the archive: RemoteFetchPurgatory, fetchers, caches."""
