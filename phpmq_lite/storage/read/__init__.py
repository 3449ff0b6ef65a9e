"""Read-only queries: pages, search, figures."""
