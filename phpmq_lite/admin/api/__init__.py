"""The HTTP API ``/api/v1``, one module per resource: JSON in, JSON out, problem+json."""
