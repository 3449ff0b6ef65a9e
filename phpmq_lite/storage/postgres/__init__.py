"""The PostgreSQL backend, on psycopg: all that only a database server needs."""
