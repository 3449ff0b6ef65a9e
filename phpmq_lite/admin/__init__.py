"""The admin interface: server-rendered web pages and an HTTP API, built on aiohttp."""
