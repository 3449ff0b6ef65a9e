"""A standby by Litestream: its configuration, the checkpoint rule and the lag."""
