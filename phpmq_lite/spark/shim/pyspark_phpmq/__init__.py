"""Lets Spark find ``format("phpmq")`` by itself: it imports ``pyspark_*`` for a DefaultSource."""

from phpmq_lite.spark.source import PhpmqSource as DefaultSource

__all__ = ["DefaultSource"]
