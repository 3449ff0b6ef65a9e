"""Export of history and claims as Arrow, in a process of its own outside the broker."""
