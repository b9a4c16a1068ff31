"""The backends: one interface, and a module for each kind of store. `registry` names them all."""
