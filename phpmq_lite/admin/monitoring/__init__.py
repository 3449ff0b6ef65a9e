"""Monitoring: health, metrics, limits, live feeds and notices."""
