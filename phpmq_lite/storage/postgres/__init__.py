"""The PostgreSQL backend: one active broker, fenced by a row, with replicated commits."""
