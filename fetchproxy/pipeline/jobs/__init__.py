"""Jobs over a whole archive. Spark spreads the work; what is done is done by the product's own
functions, partition by partition."""
