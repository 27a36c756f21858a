"""The picture: well-formed, escaped, and every point where its numbers say."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from ucutlass.ir.hardware import DEVICES
from ucutlass.sol.bounds import TimeBounds, bounds_of
from ucutlass.sol.roofline import RooflineError, points, roofs, scales, svg
from ucutlass.sol.work import Work

H200 = DEVICES["H200"]
SVG = "{http://www.w3.org/2000/svg}"


def made(operations: dict[str, int], moved: int, regime: str = "cold") -> TimeBounds:
    work = Work("program", operations, moved, 0)
    return bounds_of(work, (work, Work("more", {}, moved, 0)), H200, regime=regime)  # type: ignore[arg-type]


def circles(text: str) -> dict[str, tuple[float, float]]:
    root = ElementTree.fromstring(text)
    return {
        c.attrib["id"]: (float(c.attrib["cx"]), float(c.attrib["cy"]))
        for c in root.iter(f"{SVG}circle")
        if "id" in c.attrib
    }


@pytest.mark.parametrize("operations", [10**9, 10**12, 10**14])
def test_points_follow_the_numbers(operations: int) -> None:
    b = made({"bf16": operations}, 10**8)
    at = circles(svg("p", b, H200, 3 * b.fused.seconds))
    x, y = scales(points(b, 3 * b.fused.seconds), roofs(b, H200))
    for mark, seconds in (("fused", b.fused.seconds), ("measured", 3 * b.fused.seconds)):
        expected = x.at(operations / 10**8), y.at(operations / seconds)
        assert at[mark] == pytest.approx(expected, abs=0.06)
    assert at["unfused"][0] < at["fused"][0]
    assert at["fused"][1] < at["measured"][1]  # down is slower
    decade = abs(y.end - y.start) / (y.high - y.low)
    assert at["measured"][1] - at["fused"][1] == pytest.approx(math.log10(3) * decade, abs=0.2)


def test_a_fused_point_lies_on_its_roof() -> None:
    """On the slope where memory decides, on the flat where the compute type does."""
    for operations, roof in ((10**9, "slope"), (10**14, "roof")):
        b = made({"bf16": operations}, 10**8)
        text = svg("p", b, H200)
        x, y = circles(text)["fused"]
        drawn = ElementTree.fromstring(text).iter(f"{SVG}line")
        line = next(e for e in drawn if e.attrib.get("class") == roof)
        x1, y1, x2, y2 = (float(line.attrib[k]) for k in ("x1", "y1", "x2", "y2"))
        assert x1 <= x <= x2
        assert y == pytest.approx(y1 + (y2 - y1) * (x - x1) / (x2 - x1), abs=0.3)


def test_any_title_is_text() -> None:
    text = svg('<script>alert("&")</script>' * 9, made({"bf16": 10**12}, 10**8), H200)
    root = ElementTree.fromstring(text)
    assert not list(root.iter(f"{SVG}script"))
    assert "alert" in (root.findtext(f"{SVG}title") or "")


def test_warm_pictures_have_the_l2_too() -> None:
    cold, warm = (roofs(made({"bf16": 1, "f32": 1, "mufu": 1}, 10, r), H200) for r in ("cold", "warm"))
    assert [r.slopes for r in cold] == [True, False, False]
    assert [r.slopes for r in warm] == [True, True, False, False]
    assert "estimate" in warm[1].words


def test_everything_is_inside_the_picture() -> None:
    b = made({"bf16": 10**15, "tf32x3": 5, "f32": 7, "e4m3": 10**3}, 1, "warm")
    root = ElementTree.fromstring(svg("p", b, H200, 1e3))
    for element in root.iter():
        for key in ("x", "cx", "x1", "x2"):
            assert 0 <= float(element.attrib.get(key, 0)) <= 760
        for key in ("y", "cy", "y1", "y2"):
            assert 0 <= float(element.attrib.get(key, 0)) <= 480


def test_both_grounds_are_drawn_for() -> None:
    text = svg("p", made({"bf16": 10**12}, 10**8), H200)
    assert "prefers-color-scheme:dark" in text


@pytest.mark.parametrize("operations", [{}, {"mufu": 10**6}])
def test_without_operations_there_is_no_place(operations: dict[str, int]) -> None:
    with pytest.raises(RooflineError, match="program has no operations"):
        svg("p", made(operations, 10**8), H200)
