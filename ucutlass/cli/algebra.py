"""This module prints what `ucc explain --algebra` derives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ucutlass import frontend, ir
from ucutlass.algebra.derivation import AlgebraCandidate, Derivation, FoldedCandidate, derive
from ucutlass.algebra.rule import AlgebraRule
from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail
from ucutlass.cli.options import names_in
from ucutlass.grammar.format import format_file
from ucutlass.ir.hardware import Device
from ucutlass.units import duration


def explain(
    checked: frontend.Checked,
    program: ir.Program,
    sizes: Mapping[str, int],
    arch: str,
    device: Device | None,
    weights: str,
    as_json: bool,
) -> None:
    """Prints the programs that algebra makes of a program, the derivation of the first one rule by rule, and the
    program that computes once what depends on `weights` alone, names with commas between them. Raises
    ShapeError."""
    names = names_in(weights)
    unknown = {*names} - {p.name for p in program.params}
    if unknown:
        words = f"{program.name} has no parameter {', '.join(sorted(unknown))}"
        fail(Status.CALL, f"{words}; it has {', '.join(p.name for p in program.params)}", as_json)
    derivation = derive(checked, program, sizes, arch, device)
    folded = derivation.folded(names) if names else None
    if as_json:
        row = _json(program, sizes, derivation)
        show.data(row | ({"folded": None if folded is None else _folded_json(folded)} if names else {}))
        return
    if names:
        _show_folded(derivation, folded)
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


def _show_folded(derivation: Derivation, folded: FoldedCandidate | None) -> None:
    if folded is None:
        show.say("nothing is gained by computing once what depends on these parameters alone")
        return
    show.say(f"as it stands: {_estimate(derivation.seconds)}")
    show.say(
        f"folded: {duration(folded.seconds)} a call, and {duration(folded.once)} once: {_names(folded.rules)}\n"
    )
    show.say(folded.text)


def _names(rules: Sequence[AlgebraRule]) -> str:
    return ", ".join(rule.name for rule in rules) or "the same values, stored elsewhere"


def _folded_json(folded: FoldedCandidate) -> dict[str, Any]:
    return {
        "text": folded.text,
        "seconds": folded.seconds,
        "once": folded.once,
        "rules": [rule.name for rule in folded.rules],
    }


def _estimate(seconds: float | None) -> str:
    return "no kernels serve it" if seconds is None else duration(seconds)


def _rule(rule: AlgebraRule) -> str:
    return f"{rule.name}: {rule.statement} ({HOLDS[rule.holds]})"


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
    return f"{duration(candidate.seconds)}{gain}: {_names(candidate.rules)}{constant}"


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
                    {"name": r.name, "text": r.statement, "holds": r.holds, "source": r.source}
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
