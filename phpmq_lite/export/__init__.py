"""Exports history and claims in Arrow format, in a process separate from the broker."""
