"""What pages show: texts, charts and tables made from rows and figures."""
