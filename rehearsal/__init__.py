"""`make drill-cluster`: a real cluster of three brokers under load is lost with its disks and
restored into an empty one, and what its clients were told is compared with what is there.
"""
