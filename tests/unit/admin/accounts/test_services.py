"""Refused logins: one audit row per address and minute."""

from phpmq_lite.admin.accounts.services import ADDRESSES, MINUTE_MS, RefusedLogins
from phpmq_lite.model import AuditEntry


class Audit:
    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []

    async def note(self, entry: AuditEntry, more: int) -> None:
        self.rows.append((entry.address, more))


def entry(address: str) -> AuditEntry:
    return AuditEntry("nobody", "ui", address, "session.login", result="wrong_password")


async def test_refusals_of_a_minute_are_one_row_and_one_count() -> None:
    audit, refusals = Audit(), RefusedLogins()
    for _ in range(100):
        await refusals.add(entry("10.0.0.1"), 0, audit.note)
    await refusals.add(entry("10.0.0.2"), 0, audit.note)
    assert audit.rows == [("10.0.0.1", 1), ("10.0.0.2", 1)]
    await refusals.flush(audit.note)
    assert audit.rows[2:] == [("10.0.0.1", 99)]
    await refusals.flush(audit.note)
    assert (len(audit.rows), refusals.total) == (3, 101)


async def test_next_minute_has_rows_of_its_own() -> None:
    audit, refusals = Audit(), RefusedLogins()
    for minute in range(3):
        for _ in range(2):
            await refusals.add(entry("10.0.0.1"), minute * MINUTE_MS, audit.note)
    assert audit.rows == [("10.0.0.1", 1)] * 5


async def test_very_many_addresses_share_a_row() -> None:
    audit, refusals = Audit(), RefusedLogins()
    for at in range(ADDRESSES + 50):
        await refusals.add(entry(f"address {at}"), 0, audit.note)
    assert len(audit.rows) == ADDRESSES + 1
    assert audit.rows[-1] == ("many", 1)
