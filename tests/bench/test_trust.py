"""The tricks of `benchmarks.trust` on the CPU as far as they need no streams, and its verdicts."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from torch_cpu import TorchCpu

from benchmarks import trust
from benchmarks.trust import caught, markdown, same, spread, verdicts
from benchmarks.trust_tasks import TRICKS, findings_of, same_twice, trick, tried
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.tasks.bench import on_gpu

FAST = Protocol(warmup=0.0, min_seconds=0.0, max_seconds=60.0, block_us=200.0, launches=4, wall_launches=4)


@pytest.mark.parametrize(
    "name", ["honest", "one small buffer in the L2", "first-call cache", "cache by pointer"]
)
def test_tricks_are_caught_by_their_names(name: str) -> None:
    report = tried(name, {"M": 16, "N": 16, "K": 16}, TorchCpu(), FAST)
    found, expected = set(findings_of(report)), TRICKS[name].findings
    assert bool(found & expected) if expected else not found and report["outcomes"][0]["trusted"]


def process(median: float, trusted: bool = True) -> dict[str, Any]:
    outcome = {"span": {"median": median}, "sm_clock": 1.8e9, "trusted": trusted, "findings": []}
    return {"regimes": [{"outcomes": [outcome]}]}


def test_the_spread_is_over_all_processes() -> None:
    good = spread([process(180.0 + 0.1 * i) for i in range(10)])
    assert good["ok"] and "spread 0.50%" in good["words"]
    assert not spread([process(180.0), process(184.0)])["ok"]
    assert not spread([*[process(180.0)] * 9, process(180.0, trusted=False)])["ok"]
    assert not spread([*[process(180.0)] * 9, {"lost": "TimedOut"}])["ok"]


def test_nineteen_of_twenty_must_find_no_difference() -> None:
    def report(verdict: str | None) -> dict[str, Any]:
        reason = "" if verdict else "launch floor"
        return {"versus": [{"verdict": verdict, "ratio": {"median": 1.001}, "reason": reason}]}

    assert same([report("no difference")] * 19 + [report("faster")])["ok"]
    assert not same([report("no difference")] * 18 + [report("faster")] * 2)["ok"]
    assert not same([report("no difference")] * 18 + [report(None)] * 2)["ok"]
    assert same([report(None), {"versus": []}])["words"].endswith(
        "no verdict: launch floor; there was no time to compare"
    )
    assert not same([])["ok"] and not same({"lost": "Crashed"})["ok"]


def tricks(**changed: Any) -> dict[str, Any]:
    def report(names: frozenset[str]) -> dict[str, Any]:
        found = [{"name": n, "level": "trust", "message": ""} for n in names]
        return {"outcomes": [{"findings": found} | ({"failed": "audit"} if names else {})]}

    return {name: report(t.findings) for name, t in TRICKS.items()} | changed


def test_a_missed_trick_and_a_false_alarm_both_fail() -> None:
    assert caught(tricks())["ok"]
    unseen = {"outcomes": [{"findings": []}]}
    assert "second stream" in caught(tricks(**{"second stream": unseen}))["words"]
    alarm = {"outcomes": [{"findings": [{"name": "escaped", "level": "trust", "message": ""}]}]}
    assert not caught(tricks(honest=alarm))["ok"]
    assert not caught({})["ok"]


def test_what_has_not_run_is_not_met() -> None:
    assert not any(v["ok"] for v in verdicts({}).values())
    assert markdown({"tricks": tricks()}).count("| yes |") == 1 + len(TRICKS)


@pytest.mark.parametrize(
    "asks, function", [(trust.fresh, on_gpu), (trust.itself, same_twice), (trust.tricked, trick)]
)
def test_processes_are_asked_for_what_they_take(
    asks: Any, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, set[str]]] = []
    monkeypatch.setattr(trust, "answered", lambda t, a, s: asked.append((t, set(json.loads(json.dumps(a))))))
    match asks:
        case trust.tricked:
            asks("honest")
        case trust.fresh:
            asks({"program": {}, "built": {}}, 3)
        case _:
            asks("honest", 3)
    assert asked == [
        (
            f"{function.__module__}:{function.__name__}",
            set(inspect.signature(function).parameters) - {"proven"},
        )
    ]
