"""Any bytes end in a tree or in a SyntaxProblem, soon."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.fuzz import HANG_SECONDS, processor_time
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import decode, parse
from ucutlass.grammar.problems import SyntaxProblem
from ucutlass.grammar.syntax import File

PROGRAMS = sorted((Path(__file__).parent.parent.parent / "examples" / "tasks").glob("*.ucu"))
SIZE = 64 * 1024

_BYTES = b"()[]{}=:,.+-*/%#@|<>! \n\t\0\xff\xc3abcxKM0129e_"


def _ends_well(data: bytes) -> tuple[File, str] | None:
    """The tree and its canonical text, or None where the bytes are no program."""
    with processor_time(HANG_SECONDS):
        try:
            tree = parse(decode(data))
        except SyntaxProblem as error:
            assert error.problems
            assert all(0 <= p.span.start <= p.span.end <= len(data) for p in error.problems)
            return None
        return tree, format_file(tree)


def _mutated(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at, other = rng.randrange(len(out) + 1), rng.randrange(len(out) + 1)
        match rng.randrange(3):
            case 0:
                out[at : at + 1] = bytes([rng.choice(_BYTES)])
            case 1:
                del out[at : at + rng.choice([1, 3, 20])]
            case 2:
                out[at:at] = out[other : other + rng.choice([1, 5, 30])]
    return bytes(out)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_programs(seed: int) -> None:
    rng = random.Random(seed)
    programs = [p.read_bytes() for p in PROGRAMS]
    for _ in range(100):
        result = _ends_well(_mutated(rng.choice(programs), rng))
        if result is not None:
            tree, text = result
            assert parse(text) == tree


HEAD = "kernel f(x: f32[M, K]) -> f32[M] { return x"


@pytest.mark.parametrize(
    ("head", "unit", "tail"),
    [
        ("", "(", ""),
        ("", ")", ""),
        ("", "{[(", ""),
        ("", "@", ""),
        ("", "@ ", ""),
        ("", "a ", ""),
        ("", "1 ", ""),
        ("", "0x", ""),
        ("", "1e", ""),
        ("", "\0", ""),
        ("", "#\n", ""),
        ("", " ", ""),
        ("", "é", ""),
        ("", "'", ""),
        ("", "fn ", ""),
        ("", "fn f(x = x ", ""),
        ("", "fn f(x) = x\n", ""),
        (HEAD, "[A = B]", "}"),
        (HEAD, " + x", "}"),
        (HEAD, " ** x", "}"),
        (HEAD, " a = b", "}"),
        (HEAD, " a = b # c\n", "}"),
        ("fn f(x) = ", "-", "x"),
        ("fn f(x) = ", "not ", "x"),
        ("fn f(x) = f(", "x, ", ")"),
        ("fn f(x) = x[", "A = B, ", "]"),
        ("fn f(x) = ", "9", ""),
        ("fn f(x) = 0.", "9", ""),
        ("kernel f(x: f32[", "M, ", "]) -> f32 {}"),
        ("kernel f(x: f32[(", "M ", ")]) -> f32 {}"),
        (HEAD + " schedule s { ", "a b ", "} }"),
        (HEAD + " schedule s { a b", " or 1x1", "} }"),
        (HEAD + " schedule s { a 1", "x1", "} }"),
    ],
)
def test_large_texts(head: str, unit: str, tail: str) -> None:
    _ends_well((head + unit * (SIZE // len(unit.encode())) + tail).encode())
