"""History for the data pipeline: claims, staged rows, readers and the insights page."""
