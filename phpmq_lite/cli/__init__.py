"""The ``phpmq-lite`` command line; each command group is a module that is imported on demand."""
