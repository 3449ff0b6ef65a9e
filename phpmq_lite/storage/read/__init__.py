"""Read-only queries for pages, searches and statistics."""
