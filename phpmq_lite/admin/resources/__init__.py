"""Handlers for the pages and the API, one module per resource."""
