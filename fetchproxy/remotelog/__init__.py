"""The Spark data source `remotelog`. The driver plans; tasks read and decode."""
