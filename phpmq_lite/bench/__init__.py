"""Measures a broker from outside, and the limits of the machine beside it; shown by ``cli``."""
