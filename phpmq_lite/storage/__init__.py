"""The storage layer: a single writer, read-only readers and numbered schema migrations."""
