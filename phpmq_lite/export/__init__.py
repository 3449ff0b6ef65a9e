"""Export of history and claims as Arrow, in a process outside the broker's interpreter."""
