"""Where segments come from: a broker through Fetch, or its log directories."""
