"""The command line: one module per command. Decides nothing about archives or clients."""
