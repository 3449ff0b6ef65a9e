"""Benchmark that measures a broker from the outside, and also the limits of the machine."""
