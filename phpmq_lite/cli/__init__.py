"""The command line ``phpmq-lite``: one module per group, imported when it is used."""
