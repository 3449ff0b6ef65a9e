"""Integrity checks for the database files: seal, write-ahead log and scrub."""
