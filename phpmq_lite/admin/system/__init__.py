"""The broker as a whole: health, limits, metrics, connections, backups, live updates."""
