"""Spark data source that reads a broker's history, and reads and writes its queues.

::

    from phpmq_lite.spark.session import session

    spark = session("look")   # or your own session: ``phpmq_lite.spark.register(spark)``
    spark.read.format("phpmq").option("url", "http://127.0.0.1:9101").load().show()

Start reading at ``source.py``, ``source_options.py``, ``reader.py``, ``writer.py`` and
``pipeline_client.py``. pyspark is imported only when it is needed.
"""

from typing import TYPE_CHECKING

from phpmq_lite.lazy_imports import names_of

if TYPE_CHECKING:
    from phpmq_lite.spark.checkpoints import final_ack
    from phpmq_lite.spark.events import read_events
    from phpmq_lite.spark.payload_types import schema_of
    from phpmq_lite.spark.source import register
    from phpmq_lite.spark.source_options import SourceConnection

__all__ = ["SourceConnection", "final_ack", "read_events", "register", "schema_of"]

if not TYPE_CHECKING:  # only type checkers see the imports above
    __getattr__, __dir__ = names_of(
        __name__,
        {
            "SourceConnection": "source_options",
            "final_ack": "checkpoints",
            "read_events": "events",
            "register": "source",
            "schema_of": "payload_types",
        },
    )
