"""HTTP for operators: health, metrics and one page. Read-only."""
