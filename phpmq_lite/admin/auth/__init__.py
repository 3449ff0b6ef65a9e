"""Authentication and authorization: accounts, sessions, rights, browser security."""
