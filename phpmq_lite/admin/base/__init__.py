"""Shared by all handlers: context, routes, URLs, formats, input and responses."""
