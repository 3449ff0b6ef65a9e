"""The data source in a session of Spark Connect, on a server that has our code as a zip."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phpmq_lite.spark.executor_zip import build_zip, zip_name
from phpmq_lite.spark.session import find_java
from phpmq_lite.storage.arrow import COLUMNS
from tests.docs.pages import ROOT, blocks
from tests.spark.fake_broker import FakeBroker
from tests.spark.standalone import connect_server

PAGE = "docs/guides/pipeline.md"
# What follows the block of the page; ``url`` is the broker's.
CLIENT = """
import json, sys
from pyspark.errors import PySparkException

folder = sys.argv[2]
found = {}
found["offsets"] = sorted(row[0] for row in history.select("offset").collect())
found["queues"] = history.groupBy("queue").count().collect()[0].asDict()
found["comment"] = history.schema["offset"].metadata["comment"]
late = spark.read.format("phpmq").option("url", url)
found["range"] = late.option("startingOffsets", "41").load().count()
history.createOrReplaceTempView("history")
found["sql"] = spark.sql("SELECT max(size) AS largest FROM history WHERE `offset` > 40").first()[0]
try:
    late.option("queuee", "a").load().count()
except PySparkException as error:
    found["misspelt"] = "did you mean 'queue'" in str(error)

stream = spark.readStream.format("phpmq").option("url", url).option("startingOffsets", "earliest")
query = (
    stream.load().writeStream.format("parquet").option("path", f"{folder}/settled")
    .option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
found["streamed"] = spark.read.parquet(f"{folder}/settled").count()
queue = spark.readStream.format("phpmq").options(
    url=url, mode="queue", queue="work", subscription="s"
)
query = (
    queue.load().writeStream.format("parquet").option("path", f"{folder}/consumed")
    .option("checkpointLocation", f"{folder}/of-queue").trigger(availableNow=True).start()
)
query.awaitTermination()
found["consumed"] = spark.read.parquet(f"{folder}/consumed").count()
rows = spark.createDataFrame([(b"one",), (b"two",)], "body BINARY")
for _ in range(2):
    rows.write.format("phpmq").mode("append").options(
        url=url, queue="out", txnAppId="report", txnVersion="1"
    ).save()
print(json.dumps(found))
spark.stop()
"""


@pytest.mark.slow
def test_source_works_with_spark_connect(broker: FakeBroker, tmp_path: Path) -> None:
    broker.settle(50)
    broker.ready = [b"1", b"2", b"3"]
    (block,) = [block for block in blocks(PAGE) if ".remote(" in block.text]
    code = build_zip(tmp_path / zip_name())
    with connect_server(tmp_path / "server", find_java().home, code) as url:
        text = block.text.replace("sc://spark:15002", url)
        text = text.replace("http://127.0.0.1:9101", broker.url)
        assert url in text
        assert broker.url in text
        (tmp_path / "client.py").write_text(f'url = "{broker.url}"\n{text}{CLIENT}')
        done = subprocess.run(
            [sys.executable, "client.py", url, str(tmp_path)],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "offsets": [*range(1, 51)],
        "queues": {"queue": "orders", "count": 50},
        "comment": COLUMNS[0].comment,
        "range": 10,
        "sql": max(row["size"] for row in broker.rows[40:]),
        "misspelt": True,
        "streamed": 50,
        "consumed": 3,
    }
    assert [row["body"] for row in broker.published] == [b"one", b"two"]
