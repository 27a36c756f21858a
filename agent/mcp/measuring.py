"""This module has the commands that measure programs, and reads what they print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from ucutlass.agent.mcp.answers import MeasuredRow, SearchedProgram, Verdict, diagnostics_of
from ucutlass.agent.mcp.command import Command, CommandResult
from ucutlass.agent.mcp.jobs import CommandJob, JobStep

Level = Literal["screen", "full"]


def steps(
    texts: Sequence[str], options: Sequence[str], baselines: Sequence[str], level: Level
) -> list[JobStep]:
    """Returns the commands for programs at given extents: `run` alone, or the whole suite and the timing in turns
    with baselines."""
    timed = [word for baseline in baselines for word in ("--baseline", baseline)]
    if level == "screen" and not baselines:
        calls: list[tuple[str, ...]] = [("run", "-", *options)]
    elif level == "screen":
        calls = [("bench", "-", *options, *timed, "--seconds", "2")]
    else:
        calls = [("verify", "-", *options), ("bench", "-", *options, *timed)]
    return [
        JobStep(Command((*arguments, "--json"), text), subject=number)
        for number, text in enumerate(texts)
        for arguments in calls
    ]


def module_steps(name: str, inputs: Mapping[str, bytes], texts: Sequence[str]) -> list[JobStep]:
    """Returns the commands that judge programs against a PyTorch module: a session each, which judges its first
    program and no other."""
    arguments = ("optimize", name, "--start", "start.ucu", "--attempts", "0", "--json")
    return [
        JobStep(
            Command(arguments, inputs={**inputs, "start.ucu": text.encode("utf-8", "surrogatepass")}),
            subject=number,
        )
        for number, text in enumerate(texts)
    ]


def rows(job: CommandJob) -> list[MeasuredRow]:
    """Returns what is known of each program, in their order. What has begun and not ended is left out."""
    pairs = zip(job.steps, job.results, strict=False)
    return [
        _row(job.digests[number], [result for _, result in group if result is not None])
        for number, group in groupby(pairs, key=lambda pair: pair[0].subject)
    ]


def _row(digest: str, results: Sequence[CommandResult]) -> MeasuredRow:
    last = results[-1]
    verdict = _verdict(last)
    fields: dict[str, Any] = {}
    records: list[str] = []
    for result in results:
        fields |= _times(result.row)
        records += [r for r in (result.row.get("record"), *result.row.get("records", ())) if r]
    words = last.words or _words(last.row)
    return MeasuredRow(
        digest=digest,
        verdict=verdict,
        words=words,
        records=list(dict.fromkeys(records + list(fields.pop("records", ())))),
        diagnostics=diagnostics_of(last.row),
        **(fields if verdict == "right" else {}),
    )


def _verdict(result: CommandResult) -> Verdict:
    row = result.row
    if result.ended == "time":
        return "timeout"
    if result.fault in ("limit", "machine", "cancelled") or "lost" in row:
        return "failed"
    if result.ended == 0:
        return "built" if row.get("ran") == "CPU" else "right"
    if "diagnostics" in row or result.fault == "call":
        return "refused"
    if "session" in row:
        return "failed" if row.get("own") is None else "wrong"
    return "failed" if "error" in row else "wrong"


def _times(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the times that a command printed, whichever of `run`, `bench` and `optimize` it was."""
    if (best := row.get("best")) is not None and "session" in row:
        bound = row.get("bound")
        share = {"of_bound": bound / best["microseconds"]} if bound and best["microseconds"] else {}
        gain = {"ratio_vs": {"eager": best["gain"]}} if best["gain"] else {}
        return {"us": best["microseconds"], "records": best["records"], **share, **gain}
    if row.get("microseconds") is not None:
        return {"us": row["microseconds"], "of_bound": row.get("share_of_bound")}
    if regimes := row.get("regimes"):
        return _in_turns(regimes[0])
    return {}


def _in_turns(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the times of one regime of `bench`."""
    first = report["outcomes"][0]
    if "span" not in first:
        return {}
    span, bound = first["span"], report["bound_at_clock"] or report["bound"]
    return {
        "us": span["median"],
        "interval_us": (span["p10"], span["p90"]),
        "of_bound": bound / span["median"] if bound else None,
        "ratio_vs": {v["baseline"]: v["ratio"]["median"] for v in report["versus"] if v["ratio"]},
    }


def _words(row: Mapping[str, Any]) -> str:
    """Returns what a row says beside its times."""
    if row.get("ran") == "CPU":
        return "there is no GPU here: the kernel was built, not run"
    parts = [str(row[name]) for name in ("lost", "state", "proof") if row.get(name)]
    parts += [c["words"] for c in row.get("comparisons", ()) if not row.get("ok", True)]
    parts += [*row.get("problems", ()), *row.get("failures", ()), *row.get("said", ())]
    parts += [v["words"] for v in row.get("verified", ()) if not v["ok"]]
    return "; ".join(map(str, parts))[:2000]


def searched(result: CommandResult) -> SearchedProgram | None:
    """Returns what a search printed; None where it did not come so far."""
    row = result.row
    if "session" not in row:
        return None
    best = row["best"] or {}
    return SearchedProgram(
        session=row["session"],
        attempts=row["attempts"],
        stopped=row["stopped"],
        own_us=row["own"],
        best_us=best.get("microseconds"),
        gain=best.get("gain"),
        text=best.get("text", ""),
        records=best.get("records", []),
        messages=[str(words)[:500] for words in row["said"]][:20],
    )
