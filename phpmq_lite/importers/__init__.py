"""Imports from other queues: how each is read, and how each of its messages is published."""
