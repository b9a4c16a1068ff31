"""Record batches to Arrow: bytes in, columns out. Knows no store and no Spark."""
