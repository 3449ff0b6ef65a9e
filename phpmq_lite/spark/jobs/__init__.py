"""The pipeline jobs: archive, metrics, compact, replay and consume.

Each job has a pure function from DataFrame to DataFrame and a short ``run(spark, options, report,
stop) -> JobResult``. ``options.py`` does not need pyspark.
"""
