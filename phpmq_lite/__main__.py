"""``python -m phpmq_lite`` is the command ``phpmq-lite``."""

from phpmq_lite.cli.main import main

if __name__ == "__main__":
    main()
