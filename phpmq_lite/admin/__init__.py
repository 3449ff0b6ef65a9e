"""The admin: a broker's server-rendered web pages and HTTP API, built on aiohttp."""
