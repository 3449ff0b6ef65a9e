"""The broker core: all queue logic as plain function calls, with no I/O, clock or ``async``."""
