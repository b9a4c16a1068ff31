"""The archive on Spark: data source, jobs, and the decoder below both. Needs the extra `spark`."""
