"""The group ``pipeline``: Spark jobs that read and replay the history."""
