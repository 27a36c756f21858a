"""The report as people see it: in a real browser, light, dark and narrow, with hostile programs in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.optimise.browser import Tab, found, opened, rows
from tests.optimise.made_up import Mortal
from tests.optimise.sample_session import recorded
from tests.optimise.test_report import hostile_events
from ucutlass.agent.report.facts import facts
from ucutlass.agent.report.page import page

BROWSER = found()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium is on PATH (apt-get install chromium)")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    assert BROWSER is not None
    profile = tmp_path_factory.mktemp("profile")
    with opened(BROWSER, profile) as made:
        yield made
    shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    sink = Mortal()
    recorded(sink)
    return written(tmp_path_factory.mktemp("page") / "plain.html", sink.events)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("page") / "hostile.html", hostile_events())


def written(path: Path, events: Any) -> str:
    path.write_text(page(facts("5e551011", events)), encoding="utf-8")
    return path.as_uri()


def said(tab: Tab) -> list[str]:
    """What the console heard: errors, refusals by the page's policy, exceptions."""
    logged = [e["entry"]["text"] for e in tab.heard("Log.entryAdded")]
    called = [str(e["args"]) for e in tab.heard("Runtime.consoleAPICalled")]
    return [*logged, *called, *(str(e) for e in tab.heard("Runtime.exceptionThrown"))]


@pytest.mark.parametrize(("width", "dark"), [(1000, False), (1000, True), (360, False), (360, True)])
def test_it_is_drawn(tab: Tab, plain: str, width: int, dark: bool) -> None:
    tab.look(width, dark=dark)
    tab.show(plain)
    assert said(tab) == []
    assert [r["request"]["url"] for r in tab.heard("Network.requestWillBeSent")] == [plain]
    assert len(set(rows(tab.picture()))) > 300, "a blank page has few rows that differ"
    assert tab.value("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)"
    )
    assert tab.value("document.documentElement.scrollWidth") <= width, "nothing sticks out"


def test_what_it_says_is_there(tab: Tab, plain: str) -> None:
    tab.look(1000)
    tab.show(plain)
    text = tab.value("document.body.innerText")
    for words in (
        "What was gained",
        "1.334x",
        "between 1.314x and 1.350x at 95 %",
        "faster than the baseline at 95 %",
        "less speed than the search's own reading",
        "77.2%",
        "Best so far",
        "Roofline",
        "989 T",
        "Search tree",
        "41 candidates",
        "rejected (below-sol)",
        "ucc results show ID",
        "read from a cache",
        "overloaded",
        "tile 128x256x64",
        "the winner",
    ):
        assert words in text, words
    assert tab.value("document.querySelectorAll('.tree > li').length") == 41
    assert tab.value("document.querySelectorAll('svg[role=img]').length") == 5
    assert tab.value("document.querySelectorAll('pre ins').length") > 20


_OVERLAPS = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg[role=img]')) {
    const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++) {
      const [a, p] = texts[i], [b, q] = texts[j];
      if (p.left + 1 < q.right && q.left + 1 < p.right && p.top + 4 < q.bottom && q.top + 4 < p.bottom)
        found.push(a + ' / ' + b);
    }
    const all = svg.getBoundingClientRect();
    for (const [a, p] of texts)
      if (
        p.left < all.left - 1 || p.right > all.right + 1 || p.top < all.top - 1 || p.bottom > all.bottom + 1
      )
        found.push(a + ' sticks out');
  }
  return found;
})()"""


def test_words_of_charts_do_not_cover_each_other(tab: Tab, plain: str) -> None:
    tab.look(1000)
    tab.show(plain)
    assert tab.value(_OVERLAPS) == []


_CONTRAST = """(() => {
  document.querySelectorAll('details').forEach(d => d.open = true);
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = c => {
    const [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const at = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || at.closest('title, desc')) continue;
    const ink = parse(at.closest('svg') ? getComputedStyle(at).fill : getComputedStyle(at).color);
    let under = at;
    const ground = e => parse(getComputedStyle(e).backgroundColor);
    while (under && (ground(under)[3] ?? 1) === 0) under = under.parentElement;
    const a = light(ink.slice(0, 3)), b = light(ground(under || document.body).slice(0, 3));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.add(at.outerHTML.slice(0, 80) + ' ' + ratio.toFixed(2));
  }
  return [...found];
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_word_can_be_read(tab: Tab, plain: str, dark: bool) -> None:
    """WCAG 2: text has a contrast of at least 4.5 to its ground."""
    tab.look(1000, dark=dark)
    tab.show(plain)
    assert tab.value(_CONTRAST) == []


def test_every_picture_has_a_name_and_every_link_an_end(tab: Tab, plain: str) -> None:
    tab.show(plain)
    nodes = tab.send("Accessibility.getFullAXTree")["nodes"]
    images = [n for n in nodes if n["role"]["value"] in ("image", "img") and not n["ignored"]]
    assert len(images) == 5 and all(n["name"]["value"] for n in images)
    end = "document.getElementById(a.getAttribute('href').slice(1))"
    broken = f"[...document.querySelectorAll('a')].filter(a => !{end}).length"
    ids = "[...document.querySelectorAll('[id]')].map(e => e.id)"
    assert tab.value(broken) == 0
    assert tab.value(f"{ids}.length - new Set({ids}).size") == 0


def test_hostile_programs_are_text(tab: Tab, hostile: str) -> None:
    tab.look(1000)
    tab.show(hostile)
    assert said(tab) == []
    assert [r["request"]["url"] for r in tab.heard("Network.requestWillBeSent")] == [hostile]
    assert tab.value("window.owned === undefined")
    assert tab.value("document.scripts.length + document.images.length + document.forms.length") == 0
    assert tab.value("document.querySelectorAll('iframe, object, embed, link, base, style').length") == 1
    text = tab.value("document.body.textContent")
    for words in (
        "<script>window.owned = 1</script>",
        "</style><style>body{display:none}",
        '\'"><img src=x onerror="window.owned=1">',
        "{{ 7 * 7 }}",
        "\\u202e",
    ):
        assert words in text, words
    assert "\u202e" not in text and "49" not in tab.value("document.querySelector('h1').textContent")
    assert tab.value("getComputedStyle(document.body).display") == "block"
    assert tab.value("document.documentElement.scrollWidth") <= 1000
    assert tab.value("document.documentElement.outerHTML.length") < 3_000_000


def test_a_script_would_be_refused(tab: Tab, plain: str, tmp_path: Path) -> None:
    """The policy stands behind the escaping: what slipped through would not run."""
    path = tmp_path / "forced.html"
    source = Path(plain.removeprefix("file://")).read_text(encoding="utf-8")
    forced = '<script>window.owned = 1</script><img src="x.png" onerror="window.owned = 1"></main>'
    path.write_text(source.replace("</main>", forced), encoding="utf-8")
    tab.show(path.as_uri())
    assert tab.value("window.owned === undefined")
    assert any("Content Security Policy" in words for words in said(tab))
