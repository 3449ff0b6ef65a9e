"""Pictures of the curves: ratios of each round, scales that hold every point, valid SVG."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

FILE = Path(__file__).parent.parent.parent.parent / "benchmarks" / "curve_pictures.py"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("curve_pictures", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def points(*turns_by_point: tuple[float, ...]) -> list[dict[str, Any]]:
    return [{"value": 10**n, "us": list(turns)} for n, turns in enumerate(turns_by_point)]


def test_ratios_compare_the_same_round(pictures: ModuleType) -> None:
    """A machine that runs at half speed in one round does not change the ratios."""
    found = pictures.spots(points((10.0, 20.0, 10.0), (11.0, 22.0, 15.0)))
    assert found[0] == (1.0, 1.0, 1.0)
    assert found[1] == pytest.approx((1.1, 1.1, 1.5))


@pytest.mark.parametrize(
    ("lowest", "highest", "ticks"),
    [
        (0.9, 1.2, [0.0, 0.5, 1.0, 1.5, 2.0]),
        (0.9, 2.6, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]),
        (1.0, 500.0, [1.0, 10.0, 100.0, 1_000.0]),
        (0.5, 20.0, [0.1, 1.0, 10.0, 100.0]),
    ],
)
def test_scale_holds_every_ratio(
    pictures: ModuleType, lowest: float, highest: float, ticks: list[float]
) -> None:
    scale = pictures.Scale(lowest, highest)
    assert scale.ticks == pytest.approx(ticks)
    bottom, top = pictures.HEIGHT - pictures.BOTTOM, pictures.TOP
    assert bottom >= scale.y(lowest) > scale.y(highest) >= top


def test_picture_has_a_mark_for_each_point(pictures: ModuleType) -> None:
    lines = {
        "publish": points((10.0, 11.0), (12.0, 14.0), (10.0, 10.0)),
        "window 100": points((20.0, 21.0), (90.0, 91.0), (400.0, 399.0)),
        "window <1,000>": points((20.0, 21.0), (22.0, 24.0), (20.0, 20.0)),
    }
    root = ElementTree.fromstring(pictures.draw({"title": "queues & more", "lines": lines}))
    assert [len(root.findall(f"{SVG}{kind}[@class='c{n}']")) for n, kind in
            enumerate(("circle", "rect", "rect"))] == [4, 4, 4]  # including the legend  # fmt: skip
    assert len(root.findall(f"{SVG}polyline")) == 3
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert "window <1,000> (1 = 20.5 µs)" in words
    assert "100" in words


def test_summary_has_a_line_for_each_line(pictures: ModuleType) -> None:
    axis = {"title": "queues", "lines": {"publish": points((10.0, 20.0), (11.0, 22.0))}}
    assert pictures.summary(axis) == "  publish       1: 15.0 us x1.00   10: 16.5 us x1.10"
