"""Edits by address: what is addressed changes and nothing else, and what cannot be done is said in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ucutlass.agent.edits import BadEdit, ProgramEdit, addresses, apply_edits
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.grammar.syntax import Bind, File, Program, Return, Schedule

ROOT = Path(__file__).parents[2]
PROGRAM = """# what it is for
kernel linear(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] {
  # the product
  y = dot[K](x, w)
  return gelu(y + b)  # with its bias

  schedule sm90a when M <= 64 { tile 64x64x64  # small
    warps pingpong }
  schedule sm90a { tile 128x256x64 or 256x128x64  cluster 2x1 }
}

fn twice(v) = v + v

pipeline mlp(x: bf16[T, D], u: bf16[F, D], d: bf16[D, F]) -> bf16[T, D] {
  h: bf16[T, F] = gelu(dot[D](x, u))
  return dot[F](h, d)
}
"""
FILES = [PROGRAM, *(p.read_text() for p in sorted((ROOT / "examples").rglob("*.ucu")))]
CANONICAL = format_file(parse(PROGRAM))


def one(at: str, put: str, text: str = PROGRAM) -> str:
    return apply_edits(text, [ProgramEdit(at, put)])


def changed(at: str, put: str) -> list[tuple[str, str]]:
    """Lines of the program before and after, where they differ."""
    before, after = CANONICAL.splitlines(), one(at, put).splitlines()
    assert len(before) == len(after)
    return [(a.strip(), b.strip()) for a, b in zip(before, after, strict=True) if a != b]


# --- what changes ----------------------------------------------------------------


STAGED = "pipeline p(x: f32[M]) -> f32[M] {\n  h: f32[M] = x * 2\n  return h + 1\n  %s\n}\n"


def test_a_stages_schedule_is_addressed_like_any_other_and_its_stage_too() -> None:
    text = STAGED % "schedule sm90a for h when M > 4 { vector 8 }"
    assert ("p.schedule[1].for", "h") in addresses(text)
    assert one("p.schedule[1].for", "return", text) == format_file(
        parse(STAGED % "schedule sm90a for return when M > 4 { vector 8 }")
    )
    assert "for h when M > 4 { vector 4 }" in one("p.schedule[1].vector", "4", text)
    assert "schedule sm90a for return { vector 2 }" in one(
        "p.schedule[+]", "schedule sm90a for return { vector 2 }", text
    )


@pytest.mark.parametrize("put", ["", "h when M > 4", "h { vector 1 } schedule sm80", "2", "return y z"])
def test_a_stage_is_a_name_and_nothing_else(put: str) -> None:
    with pytest.raises(BadEdit):
        one("p.schedule[1].for", put, STAGED % "schedule sm90a for h { vector 8 }")


def test_a_field_changes_alone() -> None:
    assert changed("linear.schedule[2].tile", "128x128x64") == [
        (
            "schedule sm90a { tile 128x256x64 or 256x128x64  cluster 2x1 }",
            "schedule sm90a { tile 128x128x64  cluster 2x1 }",
        )
    ]
    assert changed("linear.schedule[1].tile", "auto or 64x128x64 # sneaky") == [
        ("tile 64x64x64  # small", "tile auto or 64x128x64  # small")
    ]


def test_fields_come_and_go() -> None:
    assert changed("linear.schedule[2].stages", "4")[0][1].endswith("cluster 2x1  stages 4 }")
    assert changed("linear.schedule[2].cluster", " ")[0][1].endswith("{ tile 128x256x64 or 256x128x64 }")
    with pytest.raises(BadEdit, match="is not given, so it cannot be left out"):
        one("linear.schedule[2].stages", "")


def test_conditions_and_stored_types() -> None:
    assert changed("linear.schedule[1].when", "") == [("schedule sm90a when M <= 64 {", "schedule sm90a {")]
    guarded = changed("linear.schedule[1].when", "M < 9 and N > 2")
    assert guarded[0][1] == "schedule sm90a when M < 9 and N > 2 {"
    assert changed("mlp.h.type", "") == [("h: bf16[T, F] = gelu(dot[D](x, u))", "h = gelu(dot[D](x, u))")]
    assert changed("linear.y.type", "f32[M, N]") == [("y = dot[K](x, w)", "y: f32[M, N] = dot[K](x, w)")]


def test_statements_blocks_and_items() -> None:
    text = one("mlp.h", "g = dot[D](x, u)\nh: bf16[T, F] = gelu(g)")
    assert "  g = dot[D](x, u)\n  h: bf16[T, F] = gelu(g)\n" in text
    assert "return relu(y)" in one("linear.return", "return relu(y)")
    assert "schedule sm90a when M <= 64" not in one("linear.schedule[1]", "")
    added = one("linear.schedule[+]", "schedule sm90a { tile auto } schedule sm90a { swizzle 2 }")
    assert addresses(added)[-8:-4] != addresses(CANONICAL)[-8:-4] and added.count("schedule sm90a") == 4
    assert one("+", "fn f(x) = x").endswith("\nfn f(x) = x\n")
    assert "fn twice" not in one("twice", "") and "fn thrice(v) = v" in one("twice", "fn thrice(v) = v")


def test_several_edits_are_of_the_program_as_it_was() -> None:
    text = apply_edits(
        PROGRAM,
        [
            ProgramEdit("linear.schedule[1]", ""),
            ProgramEdit("linear.schedule[2].tile", "auto"),
            ProgramEdit("linear.schedule[2].stages", "3"),
            ProgramEdit("mlp.h.type", ""),
        ],
    )
    assert "  schedule sm90a { tile auto  cluster 2x1  stages 3 }\n" in text
    assert "when" not in text and "h = gelu" in text


def test_every_address_is_listed_with_its_text() -> None:
    values = dict(addresses(PROGRAM))
    assert values["linear.schedule[2].tile"] == "128x256x64 or 256x128x64"
    assert values["mlp.h.type"] == "bf16[T, F]" and values["linear.y.type"] == ""
    assert values["linear.return"] == "return gelu(y + b)  # with its bias"
    assert {"linear.y", "linear.schedule[1]", "mlp.return", "twice.return"} <= set(values)


@pytest.mark.parametrize("text", FILES)
def test_putting_what_is_there_changes_nothing(text: str) -> None:
    tree = parse(text)
    plain = parse("".join(line.split("#")[0] + "\n" for line in format_file(tree).splitlines()))
    bare = format_file(plain)
    for at, there in addresses(bare):
        if there or not at.endswith(".type"):
            assert one(at, there, bare) == bare, at


# --- what is refused -------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "put", "words"),
    [
        ("linear.schedule[3].tile", "auto", "linear has 2 schedule blocks"),
        ("linear.schedule[0]", "", "linear has 2 schedule blocks"),
        ("nothing.schedule[1]", "", "names nothing in this program, which has linear, twice, mlp"),
        ("linear.z", "z = 1", "bindings y"),
        ("linear.schedule[+].tile", "auto", "write the whole block"),
        ("twice.schedule[+]", "schedule sm90a {}", "a fn has no schedule"),
        ("twice.return.type", "f32", "bindings none"),
        ("line 7", "x", "is no address"),
        ("", "x", "is no address"),
        ("linear.schedule[99999]", "x", "is no address"),
        ("linear.schedule[2].tile", "128x128x64 } schedule sm90a { tile auto", "is more than"),
        ("linear.schedule[2].tile", "128x128x64 stages 3", "is no value"),
        ("linear.schedule[2].tile", "} } kernel g() -> f32[] { return 0 schedule sm90a {", "cannot be read"),
        ("linear.schedule[1].when", "M < 9 { tile auto", "cannot be read"),
        ("linear.schedule[1].when", "M < 9 { } schedule sm90a", "is more than"),
        ("mlp.h.type", "bf16[T, F] = 1 y", "is no type"),
        ("mlp.h.type", "bf16[T, F] = 0\nz: f32", "is no type"),
        ("mlp.h.type", "bf16[T, F], z", "is no type"),
        ("linear.y", "} kernel g() -> f32[] {", "is more than"),
        ("linear.y", "schedule sm90a { tile auto }", "only bind or return statements"),
        ("linear.schedule[1]", "return 0", "only schedule statements"),
        ("linear", "kernel linear(", "cannot be read"),
        ("+", "return 0", "cannot be read"),
        ("linear.return", "\0", "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said(at: str, put: str, words: str) -> None:
    with pytest.raises(BadEdit, match=words.replace("[", r"\[")):
        one(at, put)


def test_edits_of_one_place_are_refused() -> None:
    for other in ("linear.schedule[2].tile", "linear.schedule[2]", "linear"):
        with pytest.raises(BadEdit, match="two edits of one place"):
            apply_edits(PROGRAM, [ProgramEdit("linear.schedule[2].tile", "auto"), ProgramEdit(other, "")])
    with pytest.raises(BadEdit, match="two edits of one place"):
        apply_edits(PROGRAM, [ProgramEdit("mlp.h.type", ""), ProgramEdit("mlp.h", "")])
    with pytest.raises(BadEdit, match="at most 40"):
        apply_edits(PROGRAM, [ProgramEdit("+", "fn f(x) = x")] * 41)


def test_a_text_that_is_no_program_cannot_be_edited() -> None:
    with pytest.raises(BadEdit, match="cannot be read"):
        one("linear", "", "prose")
    with pytest.raises(BadEdit, match="nothing would be left"):
        one("f", "", "fn f(x) = x")


# --- any edit --------------------------------------------------------------------

FRAGMENTS = st.one_of(
    st.sampled_from(
        [
            "",
            "auto",
            "64x64x64 or 3",
            "M < 2",
            "bf16[M, N]",
            "y = dot[K](x, w)",
            "return x",
            "schedule sm90a { tile auto }",
            "fn f(x) = x",
            "}",
            "{ } # {",
            "128 } schedule",
        ]
    ),
    st.text("a1x}{[]=,.()#\n <|:", max_size=30),
)
PLACES = [(text, at) for text in FILES for at, _ in addresses(text)]


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(PLACES), FRAGMENTS)
def test_an_edit_changes_its_node_or_nothing(place: tuple[str, str], put: str) -> None:
    text, at = place
    before = parse(text)
    try:
        after = parse(one(at, put, text))
    except BadEdit as refused:
        assert at in str(refused)
        return
    item, statement = located(before, at)
    was, now = before.items[item], after.items[item]
    assert before.items[:item] == after.items[:item] and before.items[item + 1 :] == after.items[item + 1 :]
    assert (was.name, was.params, was.comments) == (now.name, now.params, now.comments)
    grown = len(now.body) - len(was.body)
    assert was.body[:statement] == now.body[:statement]
    assert was.body[statement + 1 :] == now.body[statement + 1 + grown :]
    if at.endswith("]") or at.count(".") == 1:
        return
    old, new = was.body[statement], now.body[statement]
    part = at.rpartition(".")[2]
    assert grown == 0 and type(old) is type(new)
    match old, new:
        case Schedule(), Schedule():
            assert [f for f in old.fields if f.name != part] == [f for f in new.fields if f.name != part]
            assert (old.arch, old.when, old.comments) == (new.arch, new.when, new.comments)
        case Bind(), Bind():
            assert old.value == new.value and [t.name for t in old.targets] == [t.name for t in new.targets]


def located(tree: File, at: str) -> tuple[int, int]:
    """Item and statement of an address, found another way."""
    name, _, rest = at.partition(".")
    item = next(i for i, x in enumerate(tree.items) if x.name == name)
    body = tree.items[item].body
    first = rest.partition(".")[0]
    if first.startswith("schedule["):
        assert isinstance(tree.items[item], Program)
        blocks = [i for i, s in enumerate(body) if isinstance(s, Schedule)]
        return item, blocks[int(first[9:-1]) - 1]
    if first == "return":
        return item, next(i for i, s in enumerate(body) if isinstance(s, Return))
    bound = [i for i, s in enumerate(body) if isinstance(s, Bind) and any(t.name == first for t in s.targets)]
    return item, bound[0]
