"""The ``pipeline`` command group: Spark jobs that read and replay the history."""
