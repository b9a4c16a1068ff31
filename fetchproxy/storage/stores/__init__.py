"""The backends: one interface, and a module for each kind of store. `registry` lists them all."""
