"""This module prints what `ucc explain --algebra` derives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ucutlass import frontend, ir
from ucutlass.algebra.derivation import AlgebraCandidate, Derivation, derive
from ucutlass.algebra.rule import AlgebraRule
from ucutlass.cli import show
from ucutlass.grammar.format import format_file
from ucutlass.ir.hardware import Device
from ucutlass.units import duration


def explain(
    checked: frontend.Checked,
    program: ir.Program,
    sizes: Mapping[str, int],
    arch: str,
    device: Device | None,
    as_json: bool,
) -> None:
    """Prints the programs that algebra makes of a program, the derivation of the first one rule by rule. Raises
    ShapeError."""
    derivation = derive(checked, program, sizes, arch, device)
    if as_json:
        show.data(_json(program, sizes, derivation))
        return
    saturation = derivation.saturation
    ended = f"stopped at {saturation.stopped}" if saturation.stopped else "nothing is left to derive"
    rows = [("as it stands", _estimate(derivation.seconds)), ("search", f"{saturation.terms} terms; {ended}")]
    rows += [
        (f"candidate {number}", _line(derivation, candidate))
        for number, candidate in enumerate(derivation.candidates, 1)
    ]
    show.table(("", ""), rows)
    if not derivation.candidates:
        show.say("no rule leads to a program that is estimated to take less time")
        return
    show.say(f"\nas it stands: {_estimate(derivation.seconds)}\n\n{format_file(checked.tree)}")
    for number, step in enumerate(derivation.steps(derivation.candidates[0]), 1):
        show.say(f"step {number}: {_rule(step.rule)}\nestimate: {_estimate(step.seconds)}\n")
        show.say(step.text or "the language does not say this step alone\n")
    show.say(f"as one would launch it: {_estimate(derivation.candidates[0].seconds)}\n")
    show.say(derivation.candidates[0].text)


def _estimate(seconds: float | None) -> str:
    return "no kernels serve it" if seconds is None else duration(seconds)


def _rule(rule: AlgebraRule) -> str:
    return f"{rule.name}: {rule.text} ({HOLDS[rule.holds]})"


HOLDS: Mapping[str, str] = {
    "always": "for all values",
    "no NaN": "for all values but NaN",
    "finite": "for finite values",
}


def _line(derivation: Derivation, candidate: AlgebraCandidate) -> str:
    gain = (
        "" if derivation.seconds is None else f", {derivation.seconds / candidate.seconds:.2f} times as fast"
    )
    constant = f"; depends on no input: {', '.join(candidate.constants)}" if candidate.constants else ""
    names = ", ".join(r.name for r in candidate.rules) or "the same values, stored elsewhere"
    return f"{duration(candidate.seconds)}{gain}: {names}{constant}"


def _json(program: ir.Program, sizes: Mapping[str, int], derivation: Derivation) -> dict[str, Any]:
    return {
        "program": program.name,
        "sizes": dict(sizes),
        "seconds": derivation.seconds,
        "terms": derivation.saturation.terms,
        "stopped": derivation.saturation.stopped,
        "candidates": [
            {
                "text": candidate.text,
                "seconds": candidate.seconds,
                "constants": list(candidate.constants),
                "rules": [
                    {"name": r.name, "text": r.text, "holds": r.holds, "source": r.source}
                    for r in candidate.rules
                ],
            }
            for candidate in derivation.candidates
        ],
        "steps": [
            {"rule": step.rule.name, "text": step.text, "seconds": step.seconds}
            for candidate in derivation.candidates[:1]
            for step in derivation.steps(candidate)
        ],
    }
