"""The public names of ``phpmq_lite.envelopes``, and what looking at them loads."""

import subprocess
import sys

import pytest

from phpmq_lite import envelopes


@pytest.mark.parametrize("name", envelopes.__all__)
def test_every_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(envelopes, name)
    assert name in dir(envelopes)


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'conect'"):
        envelopes.conect  # noqa: B018 - the look-up is the test


def test_verdict_and_record_load_nothing_of_the_sdk() -> None:
    """The broker imports them; the SDK and the clients are for programs."""
    code = (
        "import sys; import phpmq_lite.envelopes.verdict, phpmq_lite.envelopes.record; "
        "print({'babelqueue', 'phpmq_lite.client', 'asyncio'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
