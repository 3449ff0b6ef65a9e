"""Imports from other queues: read their messages and plan how each is published."""
