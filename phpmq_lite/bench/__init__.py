"""Measures a broker from outside, next to the limits of the machine it runs on."""
