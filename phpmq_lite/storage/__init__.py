"""The storage layer: one writing connection, read-only connections and schema migrations."""
