"""What all handlers share: context, routes, URLs, formats, input and responses."""
