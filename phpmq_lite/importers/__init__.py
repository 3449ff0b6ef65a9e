"""Imports from other message queues: reading their messages and planning how to publish them."""
