"""Relays the connections that a standby broker accepts to the active broker."""
