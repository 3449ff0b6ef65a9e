"""The broker core: all queue logic, as plain calls.  No I/O, no clock, no ``async``."""
