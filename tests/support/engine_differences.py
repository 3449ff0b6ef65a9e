"""Which tests do not run on PostgreSQL, and why.

A key is a file of tests, or a test in it.
"""

from typing import Final

# Tests of what only SQLite's backend has: the file and what happens to it.
SQLITE_ONLY: Final[dict[str, str]] = {
    f"tests/integration/{name}": reason
    for reason, names in {
        "the file of SQLite: WAL, checkpoints, seal, checks, backups, restore": (
            "test_checkpoints.py",
            "test_commit_failures.py",
            "test_data_folder.py",
            "test_database_replaced.py",
            "test_live_seal.py",
            "test_maintenance.py",
            "test_maintenance_commands.py",
            "test_restore.py",
            "test_seal.py",
            "test_startup_checks.py",
            "test_stopped_database.py",
            "test_wal_index.py",
            "test_wal_scan.py",
        ),
        "the writer of SQLite, its thread and its process": (
            "test_readers.py",
            "test_writer.py",
            "test_writer_batches.py",
            "test_writer_process.py",
        ),
        "the pages and statements of SQLite": (
            "test_layout.py",
            "test_settle_order.py",
            "test_sql.py",
            "test_lone_commit.py::test_lone_commit_writes_one_page_of_each_table_and_no_counter",
            "test_lone_commit.py::test_counts_are_stored_only_if_they_change",
            "test_message_costs.py",
            "test_retention.py::test_nothing_is_written_if_nothing_expires",
        ),
        "migrations of SQLite": (
            "test_migrate.py",
            "test_upgrade.py",
            "test_lone_commit.py::test_history_and_keys_of_the_first_schema_are_kept",
            "test_lone_commit.py::test_offsets_restart_if_nothing_of_the_first_schema_is_left",
            "test_lone_commit.py::test_lowest_offset_of_the_first_schema_precedes_every_new_row",
        ),
        "the index of the history, which SQLite needs": (
            "test_history_index.py",
            "test_trace_places.py",
            "test_retention.py::test_runs_go_once_their_block_is_older_than_the_history",
        ),
        "the size of SQLite's file, its locks and its errors": (
            "test_clock.py::test_clock_is_noted_later_while_a_stranger_has_the_lock",
            "test_retention.py::test_any_other_error_is_an_unknown_outcome",
            "test_retention.py::test_database_that_cannot_grow_frees_room_by_itself",
            "test_retention.py::test_full_disk_is_reported_and_nothing_is_removed",
            "test_staging_on_disk.py::test_staged_rows_are_checkpointed_for_each_mebibyte",
            "test_operations_on_disk.py::test_erased_secret_is_removed_from_the_file",
        ),
    }.items()
    for name in names
}

# Tests of what differs on PostgreSQL; docs/reference/engines.md lists the reasons.
SKIPPED: Final[dict[str, str]] = {}


def reason_of(nodeid: str, reasons: dict[str, str]) -> str | None:
    """Return the reason for a test, its file or its class; None if it has none."""
    test = nodeid.partition("[")[0]
    names = (test, test.rpartition("::")[0], test.partition("::")[0], nodeid)
    return next((reasons[name] for name in names if name in reasons), None)
