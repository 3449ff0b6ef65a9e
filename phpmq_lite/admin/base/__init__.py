"""Code shared by all handlers: context, routes, URLs, formatting, input and responses."""
