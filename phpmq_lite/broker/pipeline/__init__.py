"""Pipeline commands: subscriptions that claim messages, and publishing of staged rows."""
