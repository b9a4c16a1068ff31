"""Archive-only mode: a Kafka node without a cluster, which serves an archive to any client."""
