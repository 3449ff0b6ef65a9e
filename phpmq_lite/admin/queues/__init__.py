"""Queues: the list, one queue, its settings, and actions on queues."""
