"""A benchmark that measures a broker from outside, and the limits of its machine."""
