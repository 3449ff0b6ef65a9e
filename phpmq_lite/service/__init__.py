"""The composition root, which builds, starts and stops all parts of the broker."""
