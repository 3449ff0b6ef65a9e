"""The PHPMQ wire protocol without I/O: parsing of arbitrary byte chunks, encoding of frames."""
