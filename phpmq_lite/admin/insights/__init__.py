"""Pipeline results: the summary file, and the charts and tables drawn from it."""
