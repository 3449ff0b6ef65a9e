"""The pipeline jobs: archive, metrics, compact, replay and consume.

Each job has a short ``run(spark, options, control) -> JobResult`` around pure functions from
DataFrame to DataFrame. ``options.py`` does not require pyspark.
"""
