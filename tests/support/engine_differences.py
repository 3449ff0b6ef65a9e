"""Which tests do not run on PostgreSQL, and why.

A key is a file of tests, or a test in it.
"""

from typing import Final

# Tests of what only one backend has: SQLite's file and what happens to it, PostgreSQL's servers.
OF_ONE_ENGINE: Final[dict[str, str]] = {
    f"tests/integration/{name}": reason
    for reason, names in {
        "the file of SQLite: WAL, checkpoints, seal, checks, backups, restore": (
            "test_checkpoints.py test_doctor.py::test_database_of_a_newer_version_is_found "
            "test_doctor.py::test_database_whose_first_write_was_cut_off_is_new "
            "test_doctor.py::test_flipped_bit_is_found "
            "test_doctor.py::test_killed_broker_is_reported_and_its_files_stay "
            "test_doctor.py::test_killed_broker_of_an_empty_log_starts_after_a_visit "
            "test_doctor.py::test_lost_database_is_found test_doctor.py::test_lost_log_is_found "
            "test_doctor.py::test_stopped_broker_leaves_a_healthy_folder "
            "test_service.py::test_database_is_sealed_in_a_thread "
            "test_service.py::test_lost_database_is_refused "
            "test_service.py::test_newer_database_is_refused test_commit_failures.py "
            "test_data_folder.py test_database_replaced.py test_live_seal.py test_maintenance.py "
            "test_maintenance_commands.py test_restore.py test_seal.py test_standby.py "
            "test_startup_checks.py test_stopped_database.py test_wal_index.py test_wal_scan.py"
        ),
        "packages, whatever the engine": ("test_compiled.py test_packaging.py"),
        "PostgreSQL itself, or both engines, whatever the engine under test": (
            "test_brokers_of_a_database.py test_patroni.py test_postgres_nodes.py "
            "test_postgres_pages.py test_postgres_ranges.py test_postgres_readers.py "
            "test_postgres_upgrade.py test_postgres_writer.py test_relay.py test_sql_engines.py "
            "test_store_copy.py"
        ),
        "the writer of SQLite, its thread and its process": (
            "test_ranges.py test_readers.py test_writer.py test_writer_batches.py "
            "test_writer_process.py"
        ),
        "the pages and statements of SQLite": (
            "test_browse.py::test_statement_uses_its_index "
            "test_search.py::test_leap_passes_over_no_message "
            "test_search.py::test_source_uses_its_index test_sql.py "
            "test_lone_commit.py::test_lone_commit_writes_one_page_of_each_table_and_no_counter "
            "test_lone_commit.py::test_counts_are_stored_only_if_they_change "
            "test_message_costs.py test_retention.py::test_nothing_is_written_if_nothing_expires"
        ),
        "migrations of SQLite": ("test_migrate.py test_upgrade.py"),
        "the index of the history, which SQLite needs": (
            "test_history_index.py test_trace_places.py "
            "test_retention.py::test_runs_go_once_their_block_is_older_than_the_history"
        ),
        "the size of SQLite's file, its locks and its errors": (
            "test_browse.py::test_read_is_stopped_when_it_takes_too_long "
            "test_browse.py::test_reader_cannot_write "
            "test_browse.py::test_reader_reports_a_missing_database "
            "test_cli.py::test_serve_ends_with_0_on_sigterm_and_leaves_nothing_to_migrate "
            "test_cli.py::test_migrate_is_refused_while_the_broker_runs "
            "test_message_page.py::test_large_body_is_never_read_whole_for_a_page "
            "test_notify.py::test_watchdog_is_fed_only_while_the_writer_moves "
            "test_service.py::test_broker_ends_when_the_outcome_of_a_commit_is_unknown "
            "test_clock.py::test_clock_is_noted_later_while_a_stranger_has_the_lock "
            "test_retention.py::test_any_other_error_is_an_unknown_outcome "
            "test_retention.py::test_database_that_cannot_grow_frees_room_by_itself "
            "test_retention.py::test_full_disk_is_reported_and_nothing_is_removed "
            "test_staging_on_disk.py::test_staged_rows_are_checkpointed_for_each_mebibyte "
            "test_operations_on_disk.py::test_erased_secret_is_removed_from_the_file"
        ),
    }.items()
    for name in names.split()
}

# Tests of what differs on PostgreSQL; docs/reference/engines.md lists the reasons.
SKIPPED: Final[dict[str, str]] = {
    f"tests/{name}": reason
    for reason, names in {
        "The disk is that of the servers: `storage.free_bytes` and `storage.max_bytes` have no"
        " effect.": (
            "integration/test_room.py::test_database_above_its_bound_takes_no_messages",
            "integration/test_room.py::test_reloaded_setting_frees_space_at_once",
            "integration/test_room.py::test_start_with_too_little_space_names_the_setting",
        ),
        "The admin is imported at the start: its first client may come through a standby.": (
            "integration/test_service.py::test_admin_is_imported_when_its_first_client_connects",
        ),
        "The PHPMQ listeners open first, because a standby relays its clients.": (
            "integration/test_service.py"
            "::test_broker_that_needs_its_broken_admin_accepts_no_client",
            "integration/test_service.py::test_pages_answer_while_the_database_is_being_recovered",
        ),
        "The data folder holds no messages, so a broker without it stays ready.": (
            "integration/test_system.py::test_broker_without_its_folder_is_not_ready",
        ),
    }.items()
    for name in names
}


def reason_of(nodeid: str, reasons: dict[str, str]) -> str | None:
    """Return the reason for a test, its file or its class; None if it has none."""
    test = nodeid.partition("[")[0]
    names = (test, test.rpartition("::")[0], test.partition("::")[0], nodeid)
    return next((reasons[name] for name in names if name in reasons), None)
