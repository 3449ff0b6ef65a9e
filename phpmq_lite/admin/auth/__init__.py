"""Authentication and authorization: accounts, sessions, permissions, browser security."""
