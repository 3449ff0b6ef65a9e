"""The pages, one module each, with the routes that lead to it."""
