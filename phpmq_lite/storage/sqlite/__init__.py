"""The only write connection, and the maintenance that it performs between batches."""
