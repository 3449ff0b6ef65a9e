"""The layer around the core: the engine's loop, TCP sessions, listeners and live statistics."""
