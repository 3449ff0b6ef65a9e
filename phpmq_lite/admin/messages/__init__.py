"""Messages: search results, one message, actions, selections and bulk jobs."""
