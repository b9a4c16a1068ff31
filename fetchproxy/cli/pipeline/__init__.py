"""`fetchproxy pipeline NAME`: jobs on Spark, one module per job. Decides nothing about archives."""
