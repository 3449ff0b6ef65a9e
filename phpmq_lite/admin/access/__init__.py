"""Who comes in: hosts, origins, users, sessions, tokens, and the role that each has."""
