"""Who may read an archive without brokers: users of its own, by SASL. See docs/archive-only.md."""
