"""Lets Spark find ``format("phpmq")``: it imports ``pyspark_*`` packages for a DefaultSource."""

from phpmq_lite.spark.source import PhpmqSource as DefaultSource

__all__ = ["DefaultSource"]
