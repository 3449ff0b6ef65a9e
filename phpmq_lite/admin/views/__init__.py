"""Page content: texts, charts and tables built from stored rows and live figures."""
