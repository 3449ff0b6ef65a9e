"""Commands of the pipeline: subscriptions that claim messages, and staged rows."""
