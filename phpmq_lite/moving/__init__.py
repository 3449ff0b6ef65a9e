"""What comes here from other queues: how each is read, and what becomes of what waits there."""
