"""How the requests of each API are handled, one module per API; `table` names them all."""
