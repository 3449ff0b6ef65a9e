"""Backups, and restoring them."""
