"""Unified diffs of one CUDA file: exact, bounded, and never of another file."""

from __future__ import annotations

import difflib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.agent.proposers import answer, source_patch
from ucutlass.agent.proposers.source_patch import MOST_HUNKS, BadPatch, patched
from ucutlass.agent.source_files import CandidateFile

FILE = "".join(f"line {n};\n" for n in range(1, 41)) + "}\n}\n"


def diff(before: str, after: str, context: int = 3, name: str = "kernel.cu") -> str:
    rows = difflib.unified_diff(before.split("\n"), after.split("\n"), name, name, lineterm="", n=context)
    return "\n".join(rows)


lines = st.lists(st.sampled_from(["a;", "b;", "", "}", "  c();", "-- x", "++ y", "\\", "@@"]), max_size=30)


@given(lines, lines, st.integers(1, 4))
def test_a_diff_of_two_files_makes_one_of_the_other(
    before: list[str], after: list[str], context: int
) -> None:
    old, new = "\n".join(["begin", *before, "end"]), "\n".join(["begin", *after, "end"])
    if old != new:
        assert patched(old, diff(old, new, context)) == new


def test_lines_that_stand_elsewhere_are_found_where_they_stand_once() -> None:
    patch = "@@ -3,3 +9,9 @@ a function\n line 20;\n-line 21;\n+line 21 again;\n line 22;\n"
    assert patched(FILE, patch) == FILE.replace("line 21;", "line 21 again;")


def test_git_s_own_headers_are_no_hindrance() -> None:
    patch = "diff --git a/kernel.cu b/kernel.cu\nindex 1a2b..3c4d 100644\n" + diff(FILE, FILE + "x\n")
    assert patched(FILE, patch) == FILE + "x\n"


REFUSED = {
    "no hunk": ("hello", "before any hunk"),
    "nothing": ("", "has no hunk"),
    "a line that is none": ("@@ -1,2 +1,2 @@\n line 1;\n*line 2;\n", "line 3 of the patch begins with none"),
    "no change": ("@@ -1,2 +1,2 @@\n line 1;\n line 2;\n", "hunk 1 changes nothing"),
    "only new lines": ("@@ -0,0 +1,1 @@\n+line 0;\n", "says where it belongs"),
    "other words": ("@@ -2,1 +2,1 @@\n-line two;\n+x\n", "no line of the file reads 'line two;'"),
    "another order": (
        "@@ -2,2 +2,1 @@\n line 3;\n-line 2;\n",
        "line 4 of the file is 'line 4;', not 'line 2;'",
    ),
    "spaces that differ": ("@@ -2,1 +2,1 @@\n- line 2;\n+x\n", "no line of the file reads"),
    "several places": ("@@ -1,1 +1,1 @@\n-}\n+};\n", "stands at 2 places, lines 41, 42"),
    "hunks out of order": (
        "@@ -9,1 +9,1 @@\n-line 9;\n+x\n@@ -2,1 +2,1 @@\n-line 2;\n+y\n",
        "before those of an earlier hunk",
    ),
    "another file": (diff(FILE, "x", name="../../home/.bashrc"), "the patch is of ../../home/.bashrc"),
    "an absolute path": (diff(FILE, "x", name="/etc/passwd"), "there is one file: kernel.cu"),
    "a second file": (diff(FILE, FILE + "x") + "\n--- a/b\n+++ a/b\n@@ -1 +1 @@\n-a\n+b", "several files"),
    "a link": ("new file mode 120000\n--- /dev/null\n+++ b/kernel.cu\n@@ -0,0 +1 @@\n+/etc", "makes, moves"),
    "a rename": ("rename from kernel.cu\nrename to x\n", "makes, moves or removes files"),
    "binary": ("GIT binary patch\nliteral 3\n", "makes, moves or removes files"),
    "too long": ("x" * 200_001, "200001 characters; at most 200000"),
    "many hunks": ("@@ -1,1 +1,1 @@\n-line 1;\n+x\n" * (MOST_HUNKS + 1), "more than 200 hunks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str) -> None:
    patch, words = REFUSED[name]
    with pytest.raises(BadPatch, match=re.escape(words)):
        patched(FILE, patch)


def test_a_file_that_would_grow_beyond_its_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_patch, "MOST_SOURCE", 100)
    with pytest.raises(BadPatch, match="at most 100 are taken"):
        patched(FILE, diff(FILE, FILE + "x"))


def test_many_equal_lines_are_not_searched_for_ever() -> None:
    with pytest.raises(BadPatch, match="none of its lines says where it belongs"):
        patched("x\n" * 3_000, "@@ -5000,1 +1,1 @@\n-x\n+y\n")


# --- blocks of an answer ---------------------------------------------------------


def test_blocks_are_sources_only_where_the_session_takes_them() -> None:
    text = f"Faster.\n```cuda\n{FILE}```\nAnd so.\n```diff\n{diff(FILE, FILE + 'x')}\n```\n"
    assert answer.programs(text, "kernel k") == ()
    whole, patch = answer.programs(text, "kernel k", CandidateFile("\n".join(FILE.split("\n"))))
    assert (whole.text, whole.source, whole.why) == ("kernel k", FILE, "Faster.")
    assert (patch.text, patch.source, patch.why) == (
        "kernel k",
        FILE + "x\n",
        "And so.",
    ) or patch.source == FILE + "x"


def test_a_candidate_that_no_source_stands_for_takes_none() -> None:
    (refused,) = answer.programs("```cuda\nint x;\n```", "", CandidateFile(absent="it is a pipeline"))
    assert refused.text == refused.source == "" and "it is a pipeline" in refused.why


rows = st.sampled_from(
    ["@@ -1,2 +1,2 @@", "@@ -0,0 +1 @@", " line 1;", "-line 2;", "+x", "\\ No newline", "--- a/kernel.cu", "+++ b/kernel.cu", "", "-- ", "é", "diff --git a b"]
)  # fmt: skip


@given(st.lists(rows, max_size=12).map("\n".join) | st.text(max_size=200))
def test_no_text_is_more_than_refused(patch: str) -> None:
    try:
        assert isinstance(patched(FILE, patch), str)
    except BadPatch as problem:
        assert str(problem)
    for tag in ("diff", "cuda"):
        answer.programs(f"```{tag}\n{patch}\n```", "kernel k", CandidateFile(FILE))
