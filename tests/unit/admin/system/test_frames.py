"""What pages show of the bytes of frames."""

from phpmq_lite.admin.system.frames import format_bytes


def test_bytes_are_shown_without_anything_hidden() -> None:
    shown = format_bytes("P01é\u202e".encode() + b"\xff\x00")
    assert shown == "P01é\\u202e\\xff\\x00"
