"""The ``pipeline`` command group, whose Spark jobs archive, measure and replay the history."""
