"""Finding the process at the other end of a local connection."""

import pytest

from phpmq_lite.server import processes

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt  uid inode
   0: 0100007F:238C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1
   1: 0100007F:C350 0100007F:238C 01 00000000:00000000 00:00000000 00000000     0        0 200 1
   2: 0100007F:238C 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 300 1
"""


def test_process_is_found_by_the_own_end_of_its_socket() -> None:
    place = processes.split_address("127.0.0.1:50000")
    assert place is not None
    assert processes.inode_of(TABLE, *place) == "200"
    assert processes.inode_of(TABLE, place[0], 50_001) is None


def test_sockets_that_listen_are_found_by_their_port() -> None:
    assert list(processes.listening_sockets(TABLE, 0x238C)) == ["100"]  # no connections
    assert list(processes.listening_sockets(TABLE, 50_000)) == []


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("worker --queue mail", "worker"),
        ("/usr/bin/mysql -phunter2 -u me", "/usr/bin/mysql"),
        ("worker --password hunter2", "worker"),
        ("env DB_PASSWORD=x run", "env"),
        ("curl http://me:pw@host/x", "curl"),
        ("postgres: me hunter2", "postgres:"),
        ("php worker.php hunter2", "php worker.php"),
        ("/usr/bin/php8.2 -d a.pw=hunter2 bin/queue.php work", "/usr/bin/php8.2 bin/queue.php"),
        ("php -d a.pw hunter2 x", "php"),
        ("php -r $p='hunter2'", "php"),
        ("php -aer /x/y", "php"),
        ("python3 /usr/bin/phpmq-lite consume --token hunter2", "python3 /usr/bin/phpmq-lite"),
        ("python3.11 -m phpmq_lite consume hunter2", "python3.11 -m phpmq_lite"),
        ("python -W ignore -c open('hunter2.py')", "python"),
        ("python -W ignore app.py hunter2", "python app.py"),
        ("node --token ab/cd app.mjs", "node app.mjs"),
        ("node ab/cd=hunter2", "node"),
        ("java -Dpw=hunter2 -jar app.jar hunter2", "java -jar app.jar"),
        ("java -jar", "java"),
        ("bash -ec hunter2.sh", "bash"),
        ("sh hunter2", "sh"),
        ("x" * 600, "x" * 500 + "…"),
        ("", "unknown"),
    ],
)
def test_process_is_shown_by_program_and_script_only(line: str, shown: str) -> None:
    """No pattern finds every password in a command line."""
    assert processes.program_of(line.split(" ")) == shown
