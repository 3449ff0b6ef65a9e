"""The group ``pipeline``: the history as data for Spark."""
