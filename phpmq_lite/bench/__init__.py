"""A benchmark that measures a broker from the outside, and the limits of the machine."""
