"""The broker core: all queue logic as plain function calls, without I/O, a clock or ``async``."""
