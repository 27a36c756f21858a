"""The search of headers: definitions with their lines, bounded, and nothing outside of the folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ucutlass.agent.proposers import header_search
from ucutlass.agent.proposers.header_search import Headers, NotFound, headers_of, lines_of, symbol, text
from ucutlass.runtime.toolchain import find_cutlass

HEADER = """\
#pragma once
#define CUTE_HOST_DEVICE __host__ __device__
#define TWO_LINES(x) \\
  ((x) + 1)

struct Later;

/// Adds one.
template <class T, class U = void>
CUTE_HOST_DEVICE constexpr
T
add_one(T x, U const& = {}) {
  if (x) { return add_two(x); }
  return x + 1;
}

template <int N>
struct Later {
  static constexpr int size = N;
  CUTE_HOST_DEVICE void add_two(int x) const;
};

enum class Major { K, MN };
using Alias = Later<3>;
"""


@pytest.fixture
def headers(tmp_path: Path) -> Headers:
    (tmp_path / "include" / "cute").mkdir(parents=True)
    (tmp_path / "include" / "cute" / "a.hpp").write_text(HEADER)
    (tmp_path / "secret.hpp").write_text("struct Secret {};\n")
    (tmp_path / "include" / "cute" / "link.hpp").symlink_to(tmp_path / "secret.hpp")
    (tmp_path / "include" / "linked").symlink_to(tmp_path)
    (tmp_path / "include" / "cute" / "notes.txt").write_text("struct Notes {};\n")
    return headers_of(tmp_path / "include", "test")


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("add_one", 8, 15),
        ("cute::Later", 17, 21),
        ("Major", 23, 23),
        ("Alias", 24, 24),
        ("TWO_LINES", 3, 4),
        ("size", 19, 19),
    ],
)
def test_a_definition_is_found_with_its_lines(name: str, first: int, last: int, headers: Headers) -> None:
    shown = symbol(headers, name)
    assert shown.splitlines()[0] == f"cute/a.hpp:{first}-{last}"
    assert shown.splitlines()[-1].split(maxsplit=1)[0] == str(last)


@pytest.mark.parametrize("name", ["add_two", "Secret", "Notes", "return", "(", "a b", "x" * 300, ""])
def test_calls_declarations_and_what_is_no_name_are_not_definitions(name: str, headers: Headers) -> None:
    with pytest.raises(NotFound):
        symbol(headers, name)


def test_nothing_outside_of_the_folder_is_read(headers: Headers) -> None:
    assert list(headers.files) == ["cute/a.hpp"]
    for path in (
        "../secret.hpp",
        "/etc/passwd",
        "cute/../../secret.hpp",
        "cute/link.hpp",
        "linked/secret.hpp",
    ):
        with pytest.raises(NotFound, match="no header of CUTLASS or CuTe"):
            lines_of(headers, path, 1, 2)
    with pytest.raises(NotFound, match=r"there is cute/a\.hpp"):
        lines_of(headers, "a.hpp", 1, 1)


def test_text_is_no_pattern(headers: Headers) -> None:
    assert text(headers, "T x, U const& = {}") == "cute/a.hpp:12: add_one(T x, U const& = {}) {"
    for words in ("add_.*", "", "two\nlines", "x" * 201):
        with pytest.raises(NotFound):
            text(headers, words)
    with pytest.raises(NotFound, match="whose path holds 'cutlass'"):
        text(headers, "add_one", "cutlass")


def test_lines_are_those_of_the_file(headers: Headers) -> None:
    assert lines_of(headers, "cute/a.hpp", 23, 99).splitlines() == [
        "cute/a.hpp:23-24",
        "   23 enum class Major { K, MN };",
        "   24 using Alias = Later<3>;",
    ]
    for first, last in ((0, 1), (5, 4), (25, 30)):
        with pytest.raises(NotFound, match="has lines 1 to 24"):
            lines_of(headers, "cute/a.hpp", first, last)


def test_answers_and_folders_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(60):
        (tmp_path / f"{n:02}.h").write_text("struct Same {\n" + "  int field; // many words\n" * 300 + "};\n")
    headers = headers_of(tmp_path)
    shown = symbol(headers, "Same")
    assert len(shown) < header_search.MOST_SHOWN + 200 and "left out for their length" in shown
    hits = text(headers, "many words").splitlines()
    assert len(hits) == header_search.MOST_HITS + 1 and hits[-1].startswith("17960 further lines")
    monkeypatch.setattr(header_search, "MOST_FILES", 5)
    assert len(headers_of(tmp_path, "another").files) == 5


def test_the_installed_headers_have_what_kernels_need() -> None:
    cutlass = find_cutlass()
    headers = headers_of(cutlass.include, cutlass.version)
    assert re.search(r"struct SM90_TMA_LOAD\n", symbol(headers, "cute::SM90_TMA_LOAD"))
    assert symbol(headers, "make_tiled_mma").count("make_tiled_mma(") >= 2
    assert "wgmma.wait_group.sync.aligned" in symbol(headers, "warpgroup_wait")
    for name in ("CollectiveBuilder", "PipelineTmaAsync", "Major", "Int"):
        assert len(symbol(headers, name)) < header_search.MOST_SHOWN + 200
