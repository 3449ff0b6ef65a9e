"""Delta log of the archive, ``_delta_log`` in the results folder; requires ``deltalake``.

The ledger stays the source of truth. The log repeats its list for readers of Delta tables, such as
Polars and DuckDB. An update commits the difference between the two, so it needs no state of its
own, and the next job makes up for one that a kill prevented.
"""

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from phpmq_lite.errors import PipelineError
from phpmq_lite.installation import install_command
from phpmq_lite.spark.ledger import ArchiveFile, ArchiveLedger, archive_files
from phpmq_lite.spark.results_folder import LocalResultsFolder, ResultsFolder
from phpmq_lite.spark.table_columns import FILE_COLUMNS
from phpmq_lite.storage.arrow import READER_COLUMNS, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake.transaction import AddAction

FOLDER: Final = "_delta_log"
PARTITIONS: Final = ("date", "batch")  # as in the paths, from which Polars takes them, too


def has_delta_log(files: ResultsFolder) -> bool:
    """Return whether an earlier run created the log; then every job keeps it up to date."""
    return files.exists(FOLDER)


def check_delta(files: ResultsFolder) -> None:
    """Raise PipelineError if the log cannot be written: no package, or not a local folder."""
    if not isinstance(files, LocalResultsFolder):
        raise PipelineError(
            f"{files.url('')}: a Delta log can only be written to a folder that this machine"
            " mounts. Set --out to such a folder, or use --format parquet"
        )
    if find_spec("deltalake") is None:
        raise PipelineError(
            f"the Delta log in {files.url('')} requires the package deltalake:"
            f" {install_command('spark')}"
        )


def update_delta_log(files: ResultsFolder, ledger: ArchiveLedger) -> None:
    """Commit, as one transaction, what the ledger lists and the log does not, and vice versa."""
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.schema import Schema
    from deltalake.transaction import RemoveAction, create_table_with_add_actions

    uri, schema = files.url(""), Schema.from_arrow(_table_schema())
    listed = {file.path: file for file in archive_files(files, ledger)}
    table = DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None
    if table is None or table.schema() != schema:
        # A new version of the table replaces one that an earlier release created.
        create_table_with_add_actions(
            uri,
            schema,
            [_add_action(file, ledger.at_ms) for file in listed.values()],
            mode="overwrite",
            partition_by=list(PARTITIONS),
        )
        return
    committed = {row["path"]: row for row in pa.table(table.get_add_actions()).to_pylist()}
    actions: list[AddAction | RemoveAction] = [
        RemoveAction(
            path=path,
            size=row["size_bytes"],
            partition_values={name: str(value) for name, value in row["partition"].items()},
            deletion_timestamp=ledger.at_ms,
            data_change=True,
        )
        for path, row in committed.items()
        if path not in listed
    ]
    actions += [
        _add_action(file, ledger.at_ms) for path, file in listed.items() if path not in committed
    ]
    if actions:
        table.create_write_transaction(actions, "append", schema, list(PARTITIONS))


def _table_schema() -> "pa.Schema":
    """Return the columns of the archive's files, with times in microseconds, and the partitions."""
    import pyarrow as pa

    microseconds = pa.timestamp("us", tz="UTC")
    fields = [
        pa.field(field.name, microseconds if pa.types.is_timestamp(field.type) else field.type)
        for field in arrow_schema((*READER_COLUMNS, *FILE_COLUMNS))
    ]
    return pa.schema([*fields, pa.field("date", pa.date32()), pa.field("batch", pa.string())])


def _add_action(file: ArchiveFile, at_ms: int) -> "AddAction":
    from deltalake.transaction import AddAction

    date, batch = (part.partition("=")[2] for part in file.path.split("/")[-3:-1])
    offsets = {"offset": file.lo}, {"offset": file.hi}
    stats = {"numRecords": file.rows, "minValues": offsets[0], "maxValues": offsets[1]}
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values={"date": date, "batch": batch},
        modification_time=at_ms,
        data_change=True,
        stats=json.dumps(stats),
    )
