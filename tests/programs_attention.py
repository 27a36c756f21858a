"""Attention as programs: what the family's tests and benchmarks are made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_HEAD = "q: {t}[B, H, L, D], k: {t}[B, H, S, D], v: {t}[B, H, S, D]"


def _made(
    params: str, score: str, result: str = "{t}[B, H, L, D]", outcome: str = "dot[S]({t}(p), v)"
) -> str:
    return (
        f"kernel attention({_HEAD}{params}) -> {result} {{\n"
        "  d = dot[D](q, k)\n"
        f"  s = {score}\n"
        "  p = softmax[S](s)\n"
        f"  return {outcome}\n"
        "}\n"
    )


def _packed(
    mask: str,
    key: str = "k: {t}[S, H, D]",
    starts: str = "q_starts: {w}[O], k_starts: {w}[P=O]",
    which: str = "",
    wide: str = "i32",
    step: str = "",
    bias: str = "",
) -> str:
    """Sequences one after another; `first` is a token's place counted from its sequence's first, or, with a
    `step`, from the next sequence's."""
    q, k = (which or name for name in ("q_starts", "k_starts"))
    at = f"segment(T, starts){step}"
    first = f"fn first[T, O](starts) {{{{\n  e = {at}\n  return index(T) - starts[O = e]\n}}}}\n"
    return (
        f"{first if 'first[' in mask else ''}"
        f"kernel attention(q: {{t}}[L, (H G), D], {key}, v: {{t}}[S, H, D], {starts.replace('{w}', wide)}"
        f"{', b: f32[H, S]' if bias else ''}) -> {{t}}[L, (H G), D] {{{{\n"
        f"  own = segment(L, {q}) == segment(S, {k})\n"
        f"  p = softmax[S](where({mask}, dot[D](q, k) * rsqrt(size(D)){bias}, -inf))\n"
        "  return dot[S]({t}(p), v)\n}}\n"
    )


SCALED = "d * rsqrt(size(D))"
CAUSAL = f"where(index(S) <= index(L), {SCALED}, -inf)"

PROGRAMS: Mapping[str, str] = MappingProxyType(
    {
        "plain": _made("", SCALED),
        "unscaled": _made("", "d"),
        "causal": _made("", CAUSAL),
        "causal at the end": _made("", f"where(index(S) - index(L) <= size(S) - size(L), {SCALED}, -inf)"),
        "window": _made("", f"where(index(S) <= index(L) and index(L) - index(S) < 100, {SCALED}, -inf)"),
        "backward window": _made("", f"where(index(S) + 3 > index(L), {SCALED}, -inf)"),
        "bias": _made(", b: f32[H, L, S]", f"{SCALED} + b"),
        "narrow bias": _made(", b: {t}[B, H, L, S]", f"{SCALED} + b"),
        "mask": _made(", m: bool[B, L, S]", f"where(m, {SCALED}, -inf)"),
        "causal with bias": _made(", b: {t}[H, L, S]", f"where(index(S) <= index(L), {SCALED} + b, -inf)"),
        "lengths": _made(", n: i32[B]", f"where(index(S) < n, {SCALED}, -inf)"),
        "alibi": _made(
            ", a: f32[H]", f"where(index(S) <= index(L), {SCALED} + a * (index(S) - index(L)), -inf)"
        ),
        "capped": _made("", f"tanh({SCALED} / 30.0) * 30.0"),
        "negative": _made("", "d * -0.125"),
        "host scalar": _made(", alpha: f32", "d * alpha"),
        "gate": _made(", g: {t}[B, H, L, D]", SCALED, "{t}[B, H, L, D]", "sigmoid(g) * dot[S]({t}(p), v)"),
        "wide result": _made("", SCALED, "f32[B, H, L, D]"),
        "turned result": _made("", SCALED, "{t}[B, H, D, L]"),
        "rows first": (
            "kernel attention(q: {t}[B, L, (H G), D], k: {t}[B, S, H, D], v: {t}[B, S, H, D])\n"
            "    -> {t}[B, L, (H G), D] {{\n"
            "  p = softmax[S](where(index(S) <= index(L), dot[D](q, k) * rsqrt(size(D)), -inf))\n"
            "  return dot[S]({t}(p), v)\n"
            "}}\n"
        ),
        "grouped": (
            "kernel attention(q: {t}[B, (H G), L, D], k: {t}[B, H, S, D], v: {t}[B, H, S, D])\n"
            "    -> {t}[B, (H G), L, D] {{\n"
            "  p = softmax[S](dot[D](q, k) / sqrt(size(D)))\n"
            "  return dot[S]({t}(p), v)\n"
            "}}\n"
        ),
        "grouped causal at the end": (
            "kernel attention(q: {t}[B, (H G), L, D], k: {t}[B, H, S, D], v: {t}[B, H, S, D])\n"
            "    -> {t}[B, (H G), L, D] {{\n"
            "  s = dot[D](q, k) * rsqrt(size(D))\n"
            "  p = softmax[S](where(index(S) <= index(L) + size(S) - size(L), s, -inf))\n"
            "  return dot[S]({t}(p), v)\n"
            "}}\n"
        ),
        "packed": _packed("own"),
        "packed causal": _packed(
            "own and index(S) <= index(L)", "k: {t}[S=L, H, D]", "starts: i32[E]", "starts"
        ),
        "packed causal from the start": _packed("own and first[S, P](k_starts) <= first[L, O](q_starts)"),
        "packed causal at the end": _packed(
            "first[S, P](k_starts) < first[L, O](q_starts) + 1 and own", wide="i64", step=" + 1"
        ),
        "packed window": _packed(
            "own and first[S, P](k_starts) <= first[L, O](q_starts) + 3 and "
            "first[L, O](q_starts) - first[S, P](k_starts) < 90"
        ),
        "packed with bias": _packed("own and index(S) != 5", bias=" + b"),
        "two heads": (
            "kernel attention(q: {t}[B, H, L, D], k: {t}[B, H, S, D], v: {t}[B, H, S, E])\n"
            "    -> {t}[B, H, L, E] {{\n"
            "  p = softmax[S](where(index(S) <= index(L), dot[D](k, q) * rsqrt(size(D)), -inf))\n"
            "  return dot[S](v, {t}(p))\n"
            "}}\n"
        ),
        "parts of one tensor": (
            "kernel attention(q: {t}[B, L, (I=2 H), D], k: {t}[B, S, (H J=3), D]) -> {t}[B, L, H, D] {{\n"
            "  r = q[I = 1]\n"
            "  c = k[J = 0]\n"
            "  v = k[J = 2]\n"
            "  p = softmax[S](where(index(S) <= index(L), dot[D](r, c) * rsqrt(size(D)), -inf))\n"
            "  return dot[S]({t}(p), v)\n"
            "}}\n"
        ),
        "one sequence": (
            "kernel attention(q: {t}[L, D], k: {t}[S, D], v: {t}[S, D]) -> {t}[L, D] {{\n"
            "  return dot[S]({t}(softmax[S](dot[D](q, k) * 0.125)), v)\n"
            "}}\n"
        ),
    }
)
"""By name, with {t} for the compute type."""


def text(name: str, compute_type: str, head: int | None = None) -> str:
    """A program in a compute type; with a head the text says how long it is, so that a suite varies the rest."""
    program = PROGRAMS[name].replace("{{", "{").replace("}}", "}").replace("{t}", compute_type)
    return program if head is None else program.replace(", D]", f", D={head}]", 1)


def in_tf32(name: str, compute_type: str, head: int, tile: str) -> str:
    """A program over f32 operands that multiplies in `compute_type`, f32 or tf32, with a schedule of this tile."""
    program = text(name, "f32", head)
    if compute_type == "tf32":
        program = re.sub(r"(dot\[D\])\((\w), (\w)\)", r"\1(tf32(\2), tf32(\3))", program)
        program = program.replace("dot[S](v, f32(", "dot[S](tf32(v), tf32(").replace(
            ", v)\n}", ", tf32(v))\n}"
        )
        program = program.replace("dot[S](f32(", "dot[S](tf32(")
    end = program.rindex("}")
    return f"{program[:end]}  schedule sm90a {{ tile {tile}x{head} }}\n{program[end:]}"
