"""The ``phpmq-lite`` command line, with one module per command group, imported on demand."""
