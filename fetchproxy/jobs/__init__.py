"""Work over a whole archive, spread over Spark: a function for each job."""
