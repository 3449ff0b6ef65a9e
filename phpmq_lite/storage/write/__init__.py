"""The only write connection, and the maintenance that it runs between batches."""
