"""The PHPMQ wire protocol without I/O: bytes in any cuts to frames, frames to bytes."""
