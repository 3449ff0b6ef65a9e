"""Handlers of pages and of the API, one module per resource."""
