"""One module per API that the gateway does not merely relay, named after it."""
