"""From an empty machine to a chart: a broker, a minute of work, and its history in Spark.

    pip install '.[spark,java]'  # in the checkout
    python examples/spark/pipeline_tour.py [FOLDER]

Cells begin with ``# %%``, so editors and Jupytext can show the file as a notebook.  It starts and
stops its own broker on free ports; the results stay in FOLDER (default: ./pipeline-tour).
"""

# %% A broker in its own process, on free ports

import argparse
import html
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from phpmq_lite.client.blocking_client import BlockingClient, connect_blocking
from phpmq_lite.envelopes import codec
from phpmq_lite.spark.jobs import archive, metrics
from phpmq_lite.spark.jobs.options import ArchiveOptions, MetricsOptions
from phpmq_lite.spark.session import session
from phpmq_lite.spark.source_options import SourceConnection
from phpmq_lite.testing import BrokerProcess, broker_process

ORDERS = 3_000
QUOTES = 400  # messages that expire after a second because no client consumes them
OUTCOMES = {"acked": "#2a7f62", "dead": "#b3402e", "expired": "#c98a1b", "deleted": "#777"}


# %% Work: orders, some of which fail, and a mail for each order that succeeds


def publish(client: BlockingClient) -> None:
    """Publish orders as envelopes, and quotes that expire."""
    orders = (
        codec.encode(codec.make("urn:babel:orders:created", {"order_id": n}, queue="orders"))
        for n in range(ORDERS)
    )
    client.publish_many("orders", orders)
    client.publish_many("quotes", (b"quote %d" % n for n in range(QUOTES)), ttl_s=1)


def work(client: BlockingClient, chance: random.Random) -> int:
    """Handle all orders: dead-letter 3 %, requeue 10 % once, and send a mail for all others."""
    mails = 0
    seen: set[str] = set()
    with client.consume("orders", credit=200, timeout_s=2) as deliveries:
        for delivery in deliveries:
            order = json.loads(delivery.body)
            if chance.random() < 0.03:
                delivery.dead_letter()
            elif delivery.message_id not in seen and chance.random() < 0.1:
                seen.add(delivery.message_id)
                delivery.requeue()
            else:
                mail = codec.make(
                    "urn:babel:mails:wanted", order["data"], queue="mails",
                    trace_id=order["trace_id"],
                )  # fmt: skip
                client.publish("mails", codec.encode(mail))
                delivery.ack()
                mails += 1
    with client.consume("mails", credit=50, timeout_s=2) as deliveries:
        for delivery in deliveries:
            delivery.ack()
    return mails


# %% The history in Spark: the pipeline's own jobs, and our own query


def compute(spark: SparkSession, connection: SourceConnection, out: Path) -> tuple[int, int]:
    """Archive the history and compute metrics; return how many rows and dates were processed."""
    archived = archive.run(spark, ArchiveOptions(connection=connection, out=str(out)))
    computed = metrics.run(spark, MetricsOptions(connection=connection, out=str(out)))
    return archived.rows, int(computed.details["dates"])


def totals(spark: SparkSession, out: Path) -> DataFrame:
    """Sum up each queue's metrics over all minutes."""
    minutes = spark.read.parquet(str(out / "metrics" / "minutes"))
    counts = [F.sum(name).alias(name) for name in ("published", *OUTCOMES, "redelivered")]
    waits = [F.max(name).alias(name) for name in ("wait_p50", "wait_p95", "wait_max")]
    return minutes.groupBy("queue").agg(*counts, *waits).orderBy(F.desc("published"))


def seconds(spark: SparkSession, connection: SourceConnection) -> DataFrame:
    """Count the messages settled in each second, read directly from the broker's history."""
    history = (
        spark.read.format("phpmq")
        .options(**connection.as_options(), columns="queue,outcome,settled_at")
        .load()
    )
    return (
        history.groupBy(F.date_trunc("second", "settled_at").alias("second"))
        .agg(F.count("*").alias("settled"))
        .orderBy("second")
    )


# %% The chart: hand-written HTML and SVG, with nothing to install


def bars(rows: Sequence[tuple[str, dict[str, float]]], colours: dict[str, str]) -> str:
    """Draw a stacked bar for each row, which has a label and named parts."""
    widest = max((sum(parts.values()) for _, parts in rows), default=1) or 1
    drawn = []
    for at, (label, parts) in enumerate(rows):
        y, x = at * 30, 160.0
        drawn.append(f'<text x="150" y="{y + 17}" text-anchor="end">{html.escape(label)}</text>')
        for name, value in parts.items():
            width = 600 * value / widest
            title = f"<title>{html.escape(name)}: {value:,.0f}</title>"
            drawn.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="24"'
                f' fill="{colours[name]}">{title}</rect>'
            )
            x += width
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 17}">{sum(parts.values()):,.0f}</text>')
    height = 30 * len(rows)
    return f'<svg viewBox="0 0 840 {height}" role="img">{"".join(drawn)}</svg>'


def table(frame: DataFrame) -> str:
    """Return a small DataFrame as an HTML table."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in frame.columns)
    rows: Iterable[Sequence[object]] = frame.collect()
    body = "".join(
        "<tr>"
        + "".join(f"<td>{'–' if cell is None else html.escape(str(cell))}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def draw(file: Path, per_queue: DataFrame, per_second: DataFrame) -> None:
    """Write the page with both charts and the table."""
    by_queue = [
        (row["queue"], {name: float(row[name]) for name in OUTCOMES}) for row in per_queue.collect()
    ]
    by_second = [
        (f"{row['second']:%H:%M:%S}", {"settled": float(row["settled"])})
        for row in per_second.collect()
    ]
    legend = " ".join(
        f'<span style="color:{colour}">&#9632;</span> {name}' for name, colour in OUTCOMES.items()
    )
    file.write_text(
        "<!doctype html><meta charset=utf-8><title>A minute of work</title>"
        "<style>body{font:15px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "td,th{padding:.2em .8em;text-align:right}svg{width:100%}</style>"
        f"<h1>A minute of work</h1><h2>Settled, by queue</h2><p>{legend}</p>"
        f"{bars(by_queue, OUTCOMES)}<h2>Settled each second (UTC)</h2>"
        f"{bars(by_second, {'settled': '#3b6ea5'})}"
        f"<h2>Metrics, waits in milliseconds</h2>{table(per_queue)}",
        encoding="utf-8",
    )


# %% The whole tour


def tour(broker: BrokerProcess, folder: Path) -> Path:
    """Publish, work, archive, compute and draw; return the path of the page."""
    with connect_blocking(broker.phpmq[0]) as client:
        publish(client)
        print(f"{ORDERS:,} orders and {QUOTES:,} quotes published")
        print(f"{work(client, random.Random(5)):,} mails sent")  # noqa: S311 - no secret
    connection = SourceConnection(
        url=f"http://{broker.admin[0].removeprefix('http://').rstrip('/')}"
    )
    spark = session("pipeline tour", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    try:
        rows, dates = compute(spark, connection, folder / "results")
        print(f"{rows:,} rows archived, metrics computed for {dates} date(s)")
        per_queue = totals(spark, folder / "results").cache()
        per_queue.show()
        page = folder / "chart.html"
        draw(page, per_queue, seconds(spark, connection))
    finally:
        spark.stop()
    return page


def main() -> None:
    """Run the tour in the folder given on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("pipeline-tour"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with broker_process(folder / "data", "--admin", "127.0.0.1:0") as broker:
        print(f"Open {tour(broker, folder)} in a browser.")


if __name__ == "__main__":
    main()
