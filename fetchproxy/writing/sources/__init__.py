"""Sources of segments: a broker through Fetch, or its log directories."""
