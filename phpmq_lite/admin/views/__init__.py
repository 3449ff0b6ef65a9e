"""The content of pages: texts, charts and tables built from rows and figures."""
