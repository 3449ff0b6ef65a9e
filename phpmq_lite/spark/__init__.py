"""The history of a broker for Spark, and queues as its sources and sinks.

::

    from phpmq_lite.spark.session import session

    spark = session("look")   # or a session of your own, and ``phpmq_lite.spark.register(spark)``
    spark.read.format("phpmq").option("url", "http://127.0.0.1:9101").load().show()

The way in: ``source.py``, ``options.py``, ``reader.py``, ``writer.py``, ``transport.py``.  Nothing
here imports pyspark until it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from phpmq_lite.spark.checkpoint import final_ack
    from phpmq_lite.spark.options import Connection
    from phpmq_lite.spark.source import register

__all__ = ["Connection", "final_ack", "register"]

_HOMES: Final = {
    "Connection": "options",
    "final_ack": "checkpoint",
    "register": "source",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
