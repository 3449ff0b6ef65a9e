"""Entry point of ``python -m phpmq_lite``, which runs the ``phpmq-lite`` command."""

from phpmq_lite.cli.main import main

if __name__ == "__main__":
    main()
