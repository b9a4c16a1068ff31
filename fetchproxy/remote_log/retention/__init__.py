"""What leaves the archive or the brokers' logs, when, and what has to be certain before."""
