"""Emitted statements define a value before they read it; the shapes that once did not are refused."""

from __future__ import annotations

import pytest

from ucutlass.emit.definitions import UndefinedRead, require_definitions

LOADED = ("Pack<float, 4> raw1[kItems];", "for (int i = 0; i < kItems; ++i) {", "raw1[i] = load(p.t1);", "}")


@pytest.mark.parametrize(
    "statements",
    [
        (*LOADED, "float const v3 = number(raw1[i], v);", "r4[v].add(v3);"),
        ("float s2[kItems][kVector];", "for (;;) s2[i][v] = float(0);", "float const v3 = s2[i][v];"),
        ("bool v1; { bool in = true;", "v1 = in; }", "float const v2 = v1 ? 1.0f : 0.0f;"),
        ("Sum<float> a2[kVector];", "a2[v].add(1.0f);", "float const v3 = a2[v].value;"),
        ("float h0[1];", "{", "float const v0 = p.scalar0;", "h0[v] = v0;", "}", "float const v1 = h0[0];"),
        ("float out0;", "score::ucc_arithmetic(p.score, 0, 0, s[at], out0);", "to[n] = half_t(out0);  // s8"),
        ("{", "Pack<int, 1> raw0[1];", "raw0[0] = load(p.t0);", "int const v0 = raw0[0].value[0];", "}"),
    ],
)
def test_what_is_defined_first_passes(statements: tuple[str, ...]) -> None:
    require_definitions(statements)


@pytest.mark.parametrize(
    ("statements", "name"),
    [
        # A gathered load that stands before the load of its coordinates.
        (("Pack<int, 1> raw0[kItems];", "{", "int const v0 = int(raw0[0].value[0]);", "}"), "raw0"),
        # A scan, and a window, whose value an address reads before it is computed.
        (("float s2[kItems][kVector];", "float const v3 = s2[i][v];"), "s2"),
        (("float const v3 = a2[v].value;", "Sum<float> a2[kVector];"), "a2"),
        # A declaration in a block hides the array around it, which stays as it was.
        (
            (
                "Pack<int, 1> raw0[4];",
                "{",
                "Pack<int, 1> raw0[1];",
                "raw0[0] = load(p.t0);",
                "}",
                "int const v0 = raw0[0].value[0];",
            ),
            "raw0",
        ),
        # A launch that returns leaves nothing to the next.
        (
            (
                "Pack<int, 1> raw0[4];",
                "if constexpr (kLaunch == 0) {",
                "raw0[0] = load(p.t0);",
                "return;",
                "} else {",
                "int const v0 = raw0[0].value[0];",
                "}",
            ),
            "raw0",
        ),
        (("float const v1 = v0 + 1.0f;",), "v0"),
        # What the arithmetic fills is read before the call, or is none of its results.
        (("float out0;", "to[n] = half_t(out0);", "ucc_arithmetic(p, s[at], out0);"), "out0"),
        (("float out0;", "float out1;", "ucc_arithmetic(p, s[at], out0);", "to[n] = out1;"), "out1"),
    ],
)
def test_what_is_read_first_is_refused(statements: tuple[str, ...], name: str) -> None:
    with pytest.raises(UndefinedRead, match=rf"reads {name}, which no statement before it defines"):
        require_definitions(statements)
