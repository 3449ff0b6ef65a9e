"""What the pipeline found out: its file, and the charts and tables that are made of it."""
