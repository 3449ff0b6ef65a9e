"""The package's public names."""

import pytest

import phpmq_lite
from phpmq_lite.client.aio import connect
from phpmq_lite.client.blocking import connect_blocking


def test_public_names_are_those_of_the_clients() -> None:
    assert phpmq_lite.connect is connect
    assert phpmq_lite.connect_blocking is connect_blocking


@pytest.mark.parametrize("name", phpmq_lite.__all__)
def test_every_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(phpmq_lite, name)
    assert name in dir(phpmq_lite)


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="'phpmq_lite' has no attribute 'conect'"):
        phpmq_lite.conect  # noqa: B018 - the look-up is the test
