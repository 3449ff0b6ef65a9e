"""The schema folder on a real disk: invalid content and changes."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.envelopes.schema_registry import (
    FILE_BYTES,
    ActiveSchemas,
    RegistryError,
    read_registry,
)
from phpmq_lite.errors import SettingsError
from phpmq_lite.testing import running_service

URN = "urn:babel:orders:created"
ORDER = {
    "type": "object",
    "required": ["order_id"],
    "properties": {"order_id": {"type": "integer"}},
}


def write_folder(folder: Path, schemas: dict[str, Any], **files: Any) -> Path:
    """Write registry.json and the files that it names; bytes as they are, all else as JSON."""
    folder.mkdir(exist_ok=True)
    rows = [{"urn": urn, "schema": file} for urn, file in schemas.items()]
    write(folder / "registry.json", {"schemas": rows})
    for name, content in files.items():
        write(folder / f"{name}.json", content)
    return folder


def write(path: Path, content: Any) -> None:
    """Write as deployments do: replace the old file by a new one."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    fresh.rename(path)


def faults(folder: Path) -> list[tuple[str, str]]:
    return [(fault.file, fault.pointer) for fault in read_registry(folder).faults]


def test_folder_is_read_whole(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "s",
        {URN: "order.json", f"{URN}.v12": "v2/order.json", "x:v2:y.v3": "order.json"},
        order=ORDER,
    )
    (folder / "v2").mkdir()
    write(folder / "v2" / "order.json", True)
    found = read_registry(folder)
    assert found.faults == ()
    assert {urn: (entry.file, entry.version) for urn, entry in found.entries.items()} == {
        URN: ("order.json", 1),
        f"{URN}.v12": ("v2/order.json", 12),
        "x:v2:y.v3": ("order.json", 3),
    }
    problem = found.check(URN, {"order_id": "1"})
    assert problem is not None
    assert problem.pointer == "/data/order_id"
    assert found.check(f"{URN}.v12", {"order_id": "1"}) is None
    assert found.check("urn:babel:unknown", {"anything": 1}) is None


def test_owner_and_status_are_kept(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "s", {}, order=ORDER)
    row = {"urn": URN, "schema": "order.json", "owner": "shop", "status": "draft", "more": 1}
    write(folder / "registry.json", {"schemas": [row], "$schema": "…"})
    entry = read_registry(folder).entries[URN]
    assert (entry.owner, entry.status) == ("shop", "draft")


@pytest.mark.parametrize(
    ("manifest", "pointer"),
    [
        (b"{", ""),
        (b"\xff", ""),
        (b"x" * (FILE_BYTES + 1), ""),
        ([], ""),
        ({"schemas": {}}, "/schemas"),
        ({"schemas": ["x"]}, "/schemas/0"),
        ({"schemas": [{"schema": "order.json"}]}, "/schemas/0/urn"),
        ({"schemas": [{"urn": " ", "schema": "order.json"}]}, "/schemas/0/urn"),
        ({"schemas": [{"urn": "u" * 512, "schema": "order.json"}]}, "/schemas/0/urn"),
        ({"schemas": [{"urn": "u"}]}, "/schemas/0/schema"),
        ({"schemas": [{"urn": "u", "schema": "/etc/passwd"}]}, "/schemas/0/schema"),
        ({"schemas": [{"urn": "u", "schema": "../order.json"}]}, "/schemas/0/schema"),
        ({"schemas": [{"urn": "u", "schema": "order.json"}] * 2}, "/schemas/1/urn"),
    ],
)
def test_invalid_manifest_is_reported(tmp_path: Path, manifest: Any, pointer: str) -> None:
    folder = write_folder(tmp_path / "s", {}, order=ORDER)
    write(folder / "registry.json", manifest)
    assert faults(folder) == [("registry.json", pointer)]


def test_every_invalid_file_is_reported_once(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "s",
        {"a": "a.json", "b": "b.json", "b2": "b.json", "c": "gone.json", "d": "d\0.json", "e": "s"},
        a={"type": "object", "properties": {"n": {"type": "strnig"}}},
        b=b'{"type": "object",}',
    )
    (folder / "s").mkdir()
    assert faults(folder) == [
        ("a.json", "/properties/n/type"),
        ("b.json", ""),
        ("gone.json", ""),
        ("d\0.json", ""),
        ("s", ""),
    ]
    with pytest.raises(RegistryError, match=r"a\.json#/properties/n/type: .*strnig.*and 2 more"):
        ActiveSchemas(folder).load()


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"registry\.json: No such file"):
        ActiveSchemas(tmp_path / "nowhere").load()


def test_without_a_folder_everything_passes() -> None:
    schemas = ActiveSchemas(None)
    schemas.load()
    assert not schemas.is_registered(URN)
    assert schemas.check(URN, {"anything": object()}) is None
    assert not schemas.refresh()


def test_payloads_are_counted_by_urn(tmp_path: Path) -> None:
    schemas = ActiveSchemas(write_folder(tmp_path / "s", {URN: "order.json"}, order=ORDER))
    schemas.load()
    assert schemas.is_registered(URN)
    assert schemas.check(URN, {"order_id": 1}) is None
    assert schemas.check(URN, {}) is not None
    assert schemas.check("other", {}) is None
    counts = schemas.counts(URN)
    assert (counts.passed, counts.failed) == (1, 1)
    assert counts.last is not None
    assert counts.last.detail == "/data/order_id is missing"
    assert schemas.counts("other").passed == 0


def test_change_is_read_and_an_invalid_one_keeps_the_old_schemas(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "s", {URN: "order.json"}, order=ORDER)
    schemas = ActiveSchemas(folder)
    schemas.load()
    assert not schemas.refresh()
    write(folder / "order.json", b"{")
    with pytest.raises(RegistryError, match=r"order\.json"):
        schemas.refresh()
    assert [fault.file for fault in schemas.faults] == ["order.json"]
    assert schemas.check(URN, {}) is not None  # as before
    assert not schemas.refresh()  # reported once
    write(folder / "order.json", True)
    assert schemas.refresh()
    assert schemas.faults == ()
    assert schemas.check(URN, {}) is None
    (folder / "order.json").unlink()
    with pytest.raises(RegistryError):
        schemas.refresh()
    assert schemas.is_registered(URN)


def test_new_urn_is_known_after_the_manifest_has_changed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "s", {}, order=ORDER)
    schemas = ActiveSchemas(folder)
    schemas.load()
    assert not schemas.is_registered(URN)
    write_folder(folder, {URN: "order.json"})
    assert schemas.refresh()
    assert schemas.is_registered(URN)


async def test_watch_reads_and_reports_changes(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "s", {URN: "order.json"}, order=ORDER)
    schemas = ActiveSchemas(folder)
    schemas.load()
    reported: asyncio.Queue[RegistryError | None] = asyncio.Queue()
    task = asyncio.create_task(schemas.watch(reported.put_nowait, every_s=0.01))
    try:
        async with asyncio.timeout(10):
            write(folder / "order.json", b"{")
            assert isinstance(await reported.get(), RegistryError)
            write(folder / "order.json", True)
            assert await reported.get() is None
        assert schemas.check(URN, {}) is None
    finally:
        task.cancel()


async def test_broker_does_not_start_with_an_invalid_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "s", {URN: "gone.json"})
    with pytest.raises(SettingsError, match=r"envelopes\.schemas: .*gone\.json: No such file"):
        async with running_service(tmp_path / "data", envelopes={"schemas": folder}):
            pass
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "s", {URN: "order.json"})
    os.mkfifo(folder / "order.json")
    assert faults(folder) == [("order.json", "")]
