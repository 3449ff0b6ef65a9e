"""The results of the pipeline: the summary file, and charts and tables made from it."""
