"""Labels of addresses and networks."""

import pytest

from phpmq_lite.admin.system.labels import label_of, read_label_name


@pytest.mark.parametrize(
    ("address", "label"),
    [
        ("10.0.0.7:5", "seven"),
        ("10.0.0.8:5", "office"),
        ("10.1.0.8:5", "all of it"),
        ("192.168.0.1:5", ""),
        ("unix", "here"),
        ("::1:5", "six"),
    ],
)
def test_label_is_that_of_the_narrowest_network(address: str, label: str) -> None:
    labels = {
        "10.0.0.7": "seven", "10.0.0.0/24": "office", "10.0.0.0/8": "all of it",
        "unix": "here", "::1": "six", "not a network": "never",
    }  # fmt: skip
    assert label_of(address, labels) == label


@pytest.mark.parametrize(
    ("text", "name"),
    [(" 10.0.0.7 ", "10.0.0.7"), ("10.0.0.9/24", "10.0.0.0/24"), ("unix", "unix"), ("a", None)],
)
def test_label_belongs_to_an_address_or_network(text: str, name: str | None) -> None:
    assert read_label_name(text) == name
