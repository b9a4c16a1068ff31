"""The Spark data source `remotelog`: planning on the driver, reading and decoding in tasks."""
