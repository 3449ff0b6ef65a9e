"""Users, API tokens and login sessions."""
