"""The Spark data source `remotelog`: options, planning, reading, streaming."""
