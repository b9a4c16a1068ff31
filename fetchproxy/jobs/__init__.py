"""Work over a whole archive, in this process or on Spark. Each job is a function."""
