"""What is made of the history: archive, metrics, compact, replay, consume.

Each job is a pure function from DataFrame to DataFrame and a short
``run(spark, options, report, stop) -> Result``.  ``options.py`` needs no pyspark, ``places.py``
says what lies where.
"""
