"""The process around the core: the engine's loop, TCP sessions, listeners, live figures."""
