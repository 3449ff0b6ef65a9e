"""The admin: web pages and HTTP API of one broker, on aiohttp, rendered on the server."""
