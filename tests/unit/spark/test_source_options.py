"""Names and values of the data source's options."""

import sys
from pathlib import Path

import pytest

from phpmq_lite.admin.messages.arrow_export import NAMES
from phpmq_lite.admin.pipeline.claims import CLAIM_BYTES
from phpmq_lite.broker.pipeline.claims import CLAIM_MAX
from phpmq_lite.errors import OptionError
from phpmq_lite.spark.history import NAMES_MAX
from phpmq_lite.spark.source_options import (
    BYTES_MAX,
    KAFKA_NAMES,
    MESSAGES_MAX,
    OPTIONS,
    HistoryPosition,
    SourceConnection,
    SourceMode,
    check_option_names,
    history_options,
    queue_options,
    queues_text,
    read_mode,
    write_options,
)
from tests.support.programs import run_program

URL = {"url": "http://127.0.0.1:9101"}


def test_options_of_a_history_are_read_whatever_their_case() -> None:
    given = URL | {
        "token": "t",
        "QUEUES": "a, b,,a",
        "columns": "queue,offset",
        "outcomes": "acked, Dead",
        "startingoffsets": "7",
        "endingtimestamp": "1700000000000",
        "numPartitions": "3",
        "failondataloss": "False",
        "pushFilters": "true",
        "broker": "Bremen",
    }
    options = history_options(given, SourceMode.BATCH_READ)
    assert options.connection == SourceConnection("http://127.0.0.1:9101", "t")
    assert options.queues == ("a", "b")
    assert options.columns == ("queue", "offset")
    assert options.outcomes == ("acked", "dead")
    assert options.starting == HistoryPosition("offset", 7)
    assert options.ending == HistoryPosition("time", 1_700_000_000_000)
    assert (options.partitions, options.fails_on_data_loss) == (3, False)
    assert options.pushes_filters
    assert options.broker == "Bremen"


@pytest.mark.parametrize("name", ["a,b", " a ", ",", "~til", 'say "hi"', '["a"]', "[a]", "ä\\"])
def test_names_of_queues_are_preserved(name: str) -> None:
    given = URL | {"queues": queues_text(("plain", name))}
    assert history_options(given, SourceMode.BATCH_READ).queues == ("plain", name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "option 'queues'.*JSON list of names")
            for text in ('["a"', '["a", 1]', '["a", ""]', '["a"] b', '[ "a", ["b"]]', '["a"}')
        ),
        (queues_text(("",)), "an empty name"),
    ],
)
def test_invalid_list_of_queues_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        history_options(URL | {"queues": text}, SourceMode.BATCH_READ)


def test_defaults_equal_those_of_kafka() -> None:
    batch = history_options(URL, SourceMode.BATCH_READ)
    assert (batch.starting.kind, batch.ending.kind) == ("earliest", "latest")
    assert batch.fails_on_data_loss
    assert history_options(URL, SourceMode.HISTORY_STREAM).starting.kind == "latest"


READ, STREAM = SourceMode.BATCH_READ, SourceMode.HISTORY_STREAM
WRITE, WRITE_STREAM = SourceMode.BATCH_WRITE, SourceMode.STREAM_WRITE


@pytest.mark.parametrize(
    ("given", "mode", "text"),
    [
        ({"queu": "a"}, READ, "unknown option 'queu': did you mean 'queue'"),
        ({"maxoffsetspertriger": "1"}, READ, "did you mean 'maxOffsetsPerTrigger'"),
        ({"kafka.group.id": "g"}, READ, "use subscription"),
        ({"reader": "r"}, READ, "is for a stream read of the history"),
        ({"endingOffsets": "5"}, STREAM, "is for a batch read, but this is a stream"),
        ({"queue": "a", "queues": "b"}, READ, "one of queue, queues and queuePattern"),
        ({"numPartitions": "0"}, READ, "from 1 to 10000"),
        ({"numPartitions": "two"}, READ, "an integer"),
        ({"includeBody": "yes"}, READ, "'includeBody' is 'yes', but it must be true or"),
        ({"startingOffsets": "latest"}, READ, "must be earliest or a number"),
        ({"endingOffsets": "earliest"}, READ, "must be latest or a number"),
        ({"outcomes": "acked,deletd"}, READ, "did you mean 'deleted'"),
        ({"startingOffsets": "-1"}, READ, "must be earliest or a number"),
        (
            {"startingOffsets": "1", "startingTimestamp": "1"},
            READ,
            "one of startingOffsets and startingTimestamp",
        ),
        ({"path": "/db"}, READ, "set either url"),
        ({"txnAppId": "a"}, WRITE, "both txnAppId and txnVersion"),
        ({"path": "/db"}, WRITE, "option 'path' is for"),
        ({"txnVersion": "1", "txnAppId": "a"}, WRITE_STREAM, "is for a batch write"),
    ],
)
def test_invalid_option_is_refused_with_a_hint(
    given: dict[str, str], mode: SourceMode, text: str
) -> None:
    parse = write_options if mode in (WRITE, WRITE_STREAM) else history_options
    with pytest.raises(OptionError) as caught:
        parse(URL | given, mode)
    assert text in str(caught.value)


def test_queue_mode_requires_queue_and_subscription() -> None:
    with pytest.raises(OptionError, match="option 'queue' is missing"):
        queue_options(URL | {"mode": "queue"})
    with pytest.raises(OptionError, match="option 'subscription' is missing"):
        queue_options(URL | {"mode": "queue", "queue": "q"})
    options = queue_options(URL | {"mode": "queue", "queue": "q", "subscription": "s"})
    assert (options.messages_per_trigger, options.bytes_per_trigger) == (10_000, 64 << 20)


def test_bounds_of_a_batch_are_those_of_the_broker() -> None:
    assert NAMES_MAX == NAMES
    assert (MESSAGES_MAX, BYTES_MAX) == (CLAIM_MAX, CLAIM_BYTES)
    given = URL | {"queue": "q", "subscription": "s"}
    most = {"maxMessagesPerTrigger": "100000", "maxBytesPerTrigger": str(1 << 30)}
    options = queue_options(given | most)
    assert (options.messages_per_trigger, options.bytes_per_trigger) == (100_000, 1 << 30)
    for name, value in most.items():
        with pytest.raises(OptionError, match=f"{name}' is .* from 1 to {value}"):
            queue_options(given | {name: str(int(value) + 1)})


def test_mode_is_history_or_queue() -> None:
    assert read_mode(URL) == "history"
    assert read_mode({"MODE": "queue"}) == "queue"
    with pytest.raises(OptionError, match="did you mean 'queue'"):
        read_mode({"mode": "que"})


def test_every_option_has_a_mode_and_kafka_names_map_to_options() -> None:
    assert all(OPTIONS.values())
    for ours in KAFKA_NAMES.values():
        assert set(ours.split(" or ")) <= OPTIONS.keys()


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_misspelled_option_suggests_the_right_one(name: str) -> None:
    if name[:-1] in OPTIONS:  # queues
        return
    with pytest.raises(OptionError) as caught:
        check_option_names({name[:-1]: "x"})
    assert f"did you mean {name!r}" in str(caught.value)


def test_connection_requires_either_url_or_path() -> None:
    for given in ({}, {"url": "http://a", "path": "/b"}):
        with pytest.raises(OptionError, match="set either url"):
            SourceConnection(**given)
    with pytest.raises(OptionError, match="must begin with http"):
        SourceConnection("127.0.0.1:9101")


@pytest.mark.parametrize("url", ["http://", "http://:9101", "http://mq:91O1", "http://mq:70000"])
def test_address_without_host_or_port_is_refused(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        SourceConnection(url)
    assert str(caught.value) == f"url is {url!r}; it must have a host and a port from 1 to 65535"


def test_misplaced_secrets_are_refused_and_not_shown() -> None:
    for given in (
        {"url": "http://user:s3cret@mq:9101"},
        {"url": "http://mq:9101", "token": "s3cret\n"},  # read from a file as it is
        {"url": "http://mq:9101", "token": "s3cret…"},
    ):
        with pytest.raises(OptionError) as caught:
            SourceConnection(**given)
        assert "s3cret" not in str(caught.value)


def test_connection_hides_its_token_and_returns_its_options() -> None:
    connection = SourceConnection("http://a", "secret")
    assert "secret" not in repr(connection)
    assert connection.as_options() == {"url": "http://a", "token": "secret"}


def test_database_file_requires_a_local_master() -> None:
    connection = SourceConnection(path="/data/broker.db")
    for master in ("local", "local[2]", "local[*]"):
        connection.check_master(master)
    with pytest.raises(OptionError, match="SQLite over a network file system is unsafe"):
        connection.check_master("spark://host:7077")
    SourceConnection("http://a").check_master("spark://host:7077")


def test_light_modules_do_not_import_spark() -> None:
    program = (
        "import sys\n"
        "from phpmq_lite.spark import history, pipeline_client, session, source_options\n"
        "sys.exit(','.join({'pyspark', 'pyarrow', 'aiohttp'} & sys.modules.keys()) or 0)"
    )
    done = run_program([sys.executable, "-c", program], cwd=Path(__file__).parents[3])
    assert (done.returncode, done.stderr) == (0, "")
