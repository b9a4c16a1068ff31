"""`make demo`: the product's main job as a story that checks itself, with stock clients, a cluster
that forgets, an archive and an outage. Nothing here is imported by the product."""
