"""What happens to the requests of each API, one module per API; `table` names them all."""
