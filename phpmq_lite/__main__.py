"""Runs the ``phpmq-lite`` command for ``python -m phpmq_lite``."""

from phpmq_lite.cli.main import main

if __name__ == "__main__":
    main()
