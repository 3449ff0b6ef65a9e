"""The content of pages: texts, charts and tables made from stored rows and live statistics."""
