"""Imports from other message queues: read their messages and plan how to publish them."""
