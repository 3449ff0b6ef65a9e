"""The search language, the SQL that a search becomes, and reading it in slices."""
