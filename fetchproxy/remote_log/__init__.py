"""The write side: segments are gathered from the brokers, copied to the store, verified."""
