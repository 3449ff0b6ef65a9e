"""Integrity checks for the database files: seals, the write-ahead log, the scrub."""
