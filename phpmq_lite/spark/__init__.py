"""The history of a broker for Spark, and queues as its sources and sinks.

::

    from phpmq_lite.spark.session import session

    spark = session("look")   # or a session of your own, and ``phpmq_lite.spark.register(spark)``
    spark.read.format("phpmq").option("url", "http://127.0.0.1:9101").load().show()

The way in: ``source.py``, ``options.py``, ``reader.py``, ``writer.py``, ``transport.py``.  Nothing
here imports pyspark until it is used.
"""

from typing import TYPE_CHECKING

from phpmq_lite.lazy_imports import names_of

if TYPE_CHECKING:
    from phpmq_lite.spark.checkpoints import final_ack
    from phpmq_lite.spark.source import register
    from phpmq_lite.spark.source_options import SourceConnection

__all__ = ["SourceConnection", "final_ack", "register"]

if not TYPE_CHECKING:  # which knows the names, and what is no name
    __getattr__, __dir__ = names_of(
        __name__,
        {"SourceConnection": "source_options", "final_ack": "checkpoints", "register": "source"},
    )
