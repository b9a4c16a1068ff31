"""`make drill-cluster`: a real cluster of three brokers under load is lost with its disks and
restored into an empty one. Then the responses that clients got before are compared with it.
"""
