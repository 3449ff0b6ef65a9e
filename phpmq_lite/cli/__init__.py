"""The command line ``phpmq-lite``: one file per group, imported when it is used."""
