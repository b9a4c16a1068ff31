"""The lab sets up the real parts that tests, demo and benchmarks run against.

The parts are Apache Kafka, an S3 server, a peer proxy and clients in other languages. The lab
downloads or builds each part once into a cache outside the tree and starts it on free loopback
ports. It must not import `fetchproxy` or `protocol`: a part that shared code with the product could
not test it independently.
"""
