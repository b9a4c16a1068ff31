"""One module per API, named after it: what is asked, and what an archive answers."""
