"""`make demo`: the product's main use as a story that checks itself.

It has stock clients, a cluster that deletes old records, an archive and an outage. The product
imports nothing from here.
"""
