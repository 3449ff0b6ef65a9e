"""Entry point for ``format("phpmq")``; Spark imports ``DefaultSource`` from ``pyspark_*``."""

from phpmq_lite.spark.source import PhpmqSource as DefaultSource

__all__ = ["DefaultSource"]
