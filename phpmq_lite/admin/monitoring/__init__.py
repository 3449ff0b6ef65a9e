"""Health, metrics, limits, live feeds and what needs attention."""
