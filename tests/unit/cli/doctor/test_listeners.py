"""Doctor checks of ports, access and certificates."""

import errno
from typing import Any

import pytest

from phpmq_lite.cli.doctor import listeners
from phpmq_lite.cli.doctor.findings import BAD, OK, WARN
from phpmq_lite.cli.doctor.listeners import ListenerProbe
from phpmq_lite.server.addresses import ListenAddress
from phpmq_lite.server.processes import PeerProcess
from phpmq_lite.server.tls import Certificate
from phpmq_lite.settings import Settings

HERE = ListenAddress("tcp", "127.0.0.1", 9100)
ANY = ListenAddress("tcp", "127.0.0.1", 0)
WIDE = ListenAddress("tcp", "10.0.0.1", 9100)
TAKEN = OSError(errno.EADDRINUSE, "Address already in use")
ABSENT = OSError(errno.EADDRNOTAVAIL, "x")
DENIED = OSError(errno.EACCES, "Permission denied")
SERVE, OTHER = PeerProcess(7, "serve"), PeerProcess(8, "nc -l")
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("port", "pid", "state", "words"),
    [
        (ListenerProbe("tcp.listen", HERE), None, OK, "127.0.0.1:9100: free"),
        (ListenerProbe("tcp.listen", HERE), "7", WARN, "does not listen on 127.0.0.1:9100"),
        (ListenerProbe("tcp.listen", ANY), "7", OK, "127.0.0.1:0: used by the broker"),
        (ListenerProbe("store.relay_listen", HERE), "7", OK, "127.0.0.1:9100: used by the broker"),
        (ListenerProbe("tcp.listen", HERE, TAKEN), "7", OK, "127.0.0.1:9100: used by the broker"),
        (ListenerProbe("tcp.listen", HERE, TAKEN, SERVE), "7", OK, "used by the broker"),
        (ListenerProbe("tcp.listen", HERE, TAKEN, OTHER), "7", BAD, "by pid 8, nc -l"),
        (ListenerProbe("tcp.listen", HERE, TAKEN, OTHER), None, BAD, "by pid 8, nc -l"),
        (ListenerProbe("tcp.listen", HERE, TAKEN), None, BAD, "is in use by another program"),
        (ListenerProbe("admin.listen", WIDE, ABSENT), None, BAD, "admin.listen 10.0.0.1:9100: x"),
    ],
)
def test_port_is_judged(port: ListenerProbe, pid: str | None, state: str, words: str) -> None:
    (found,) = listeners.port_findings([port], pid)
    assert (found.state, words in found.text) == (state, True), found
    assert bool(found.hint) == (state != OK)


def test_free_ones_are_one_line() -> None:
    ports = [ListenerProbe("tcp.listen", HERE), ListenerProbe("admin.listen", WIDE)]
    (found,) = listeners.port_findings(ports, None)
    assert found.text == "127.0.0.1:9100, 10.0.0.1:9100: free"


def test_low_port_needs_a_right() -> None:
    (found,) = listeners.port_findings([ListenerProbe("tcp.listen", HERE, DENIED)], None)
    assert "ip_unprivileged_port_start=" in found.hint


@pytest.mark.parametrize(
    ("sections", "wanted", "state", "words"),
    [
        ({}, [("tcp.listen", HERE)], OK, "only this machine can connect"),
        ({"tcp": {"open": True}}, [("tcp.listen", WIDE)], WARN, "any of them can consume"),
        ({"tcp": {"open": True}}, [("admin.listen", WIDE)], OK, "other machines can connect"),
        ({"tcp": {"open": True, "allow": "10.0.0.0/8"}}, [("tcp.listen", WIDE)], OK, "10.0.0.1"),
        ({"admin": {"plaintext": True}}, [("admin.listen", WIDE)], WARN, "are sent unencrypted"),
        ({"admin": {"plaintext": True}}, [("tcp.listen", WIDE)], OK, "tcp.listen 10.0.0.1:9100"),
    ],
)
def test_access_is_judged(
    sections: dict[str, Any], wanted: list[tuple[str, ListenAddress]], state: str, words: str
) -> None:
    found = listeners.access_finding(Settings(**sections), "", wanted)
    assert (found.state, words in found.text) == (state, True), found


def test_access_that_refuses_the_start_is_bad() -> None:
    found = listeners.access_finding(Settings(), "reaches beyond", [("tcp.listen", WIDE)])
    assert (found.state, found.text) == (BAD, "reaches beyond")


@pytest.mark.parametrize(
    ("days", "state", "words"),
    [(90, OK, "admin: mq.example, 90 days left"), (20, WARN, "20 days left")],
)
def test_certificate_is_judged_by_the_days_left(days: int, state: str, words: str) -> None:
    one = Certificate("admin", "/c.pem", names=("mq.example",), expires_at=days * DAY_MS + 5)
    found = listeners.certificate_finding(one, 0)
    assert (found.state, found.text[-len(words) :]) == (state, words)


def test_certificate_of_which_nothing_is_known_is_bad() -> None:
    found = listeners.certificate_finding(Certificate("tcp", "/c.pem", error="no start line"), 0)
    assert (found.state, "no start line" in found.text) == (BAD, True)


def test_process_of_another_account_is_not_to_be_stopped() -> None:
    """Only its owner may stop it; any account can choose another address."""
    port = ListenerProbe("tcp.listen", HERE, TAKEN, OTHER, may_stop=False)
    (found,) = listeners.port_findings([port], None)
    assert found.hint == "set another address in tcp.listen"


@pytest.mark.parametrize(("account", "words"), [(0, "; or, to allow"), (1000, "ask root to run:")])
def test_only_root_runs_sysctl(monkeypatch: pytest.MonkeyPatch, account: int, words: str) -> None:
    monkeypatch.setattr("os.geteuid", lambda: account)
    (found,) = listeners.port_findings([ListenerProbe("tcp.listen", HERE, DENIED)], None)
    assert words in found.hint
    assert ("ask root" in found.hint) == (account != 0)
    assert "sysctl net.ipv4.ip_unprivileged_port_start=9100" in found.hint
