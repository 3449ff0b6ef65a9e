"""The one connection that writes, and what it does between batches."""
