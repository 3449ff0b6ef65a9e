"""Checks of the database files: seals, the write-ahead log, scrub."""
