"""The PHPMQ wire protocol without I/O: parses arbitrary chunks of bytes and encodes frames."""
