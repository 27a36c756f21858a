"""What prompts cost: the size of the stable prefix, of a typical turn, and the share served from cache, in
sessions of 40 attempts against the local server (`benchmarks.messages_api`).

A scripted model answers: it changes tiles and stages by chance, looks its program up with a tool before every
second answer, and is wrong now and then. The compiler's cost model stands for the GPU, so the outcomes and
advice in the prompts are as long as real ones. A token is four characters here; what a model's own tokenizer
makes of the same text differs, shares hardly do.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.messages_api import KEY, Script, Scripted, Server, Tokens, calls, says, serving
from ucutlass import frontend, ir
from ucutlass.agent import dialogue
from ucutlass.agent.budget import Budget
from ucutlass.agent.journal import JournalEvent
from ucutlass.agent.outcome import RefusedOutcome, TimedOutcome
from ucutlass.agent.proposers import prompt
from ucutlass.agent.proposers.anthropic import open_service
from ucutlass.agent.proposers.conversation import ModelProposer, ModelSettings
from ucutlass.agent.proposers.problem_facts import ProblemDescription, subject_of
from ucutlass.agent.proposers.tools import toolbox
from ucutlass.agent.proposers.traffic import RecordingService
from ucutlass.agent.run import CandidateJudgement, opened, run
from ucutlass.agent.session import SessionSettings, SessionState
from ucutlass.agent.stop import StopRule
from ucutlass.guide import guide
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.shapes import complete

ROOT = Path(__file__).parents[1]
PROBLEMS: Mapping[str, Mapping[str, int]] = {
    "examples/linear_gelu.ucu": {"M": 4096, "N": 4096, "K": 4096},
    "examples/mlp.ucu": {"T": 4096, "D": 1024, "F": 4096},
}
SEARCHES: Mapping[str, str] = {
    "single": "epsilon",
    "in-prompt": "epsilon",
    "stark": "epsilon",
    "mantis": "mantis",
}


@dataclass
class Planned:
    """A bench that asks the cost model."""

    subject: ProblemDescription

    def key(self, text: str) -> str | RefusedOutcome:
        return re.sub(r"\s+", " ", text)

    def judge(self, text: str) -> CandidateJudgement:
        checks = {t.name: t for t in toolbox(self.subject)}
        said = checks["check"].call({"program": text})
        if not said.startswith("fine"):
            return CandidateJudgement(RefusedOutcome(said, tuple(re.findall(r"UC\d{4}", said))))
        advice = checks["explain"].call({"program": text})
        shown = "\n".join(line for line in advice.splitlines() if re.match(r"bottleneck|advice|  ", line))
        seconds = estimate(self.subject, text)
        return CandidateJudgement(
            TimedOutcome(seconds, 2e-4 / seconds, 1.9e-4 / seconds, 2.1e-4 / seconds, advice=shown)
        )


def estimate(subject: ProblemDescription, text: str) -> float:
    """Seconds by the cost model, of all launches."""
    checked = frontend.read_text(text)
    program = frontend.program(checked, subject.program)
    extents = complete(program, subject.sizes)
    if isinstance(program, ir.Kernel):
        return frontend.plan_kernel(checked, program, extents, subject.arch).planned.seconds
    stages = plan_pipeline(checked, program, extents, subject.arch).stages
    return sum(s.chosen.planned.seconds for s in stages if s.chosen is not None)


@dataclass
class Model:
    """Answers by what a turn asks; by chance, but the same in every run."""

    subject: ProblemDescription
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def __call__(self, request: Mapping[str, Any], tokens: Tokens) -> Scripted:
        first = request["messages"][0]["content"][0]["text"]
        role = re.search(r"role (\w+)", first)
        assert role is not None
        begins = len(request["messages"]) == 1
        return self._answer(role[1], begins)(request, tokens)

    def _answer(self, role: str, begins: bool) -> Script:
        program = self._program()
        if begins and role in ("implement", "phases", "code", "debug") and self.chance.random() < 0.5:
            return says(calls("check", {"program": program}))
        match role:
            case "plan" | "analyse" | "summarise":
                return says("The main loop waits for its operands. " * 12)
            case "nominate":
                listed = [
                    {
                        "change": "A wider tile, so that each operand is read less often.",
                        "S": 1.2,
                        "R_impl": 1,
                        "R_perf": 3,
                    },
                    {
                        "change": "A cluster of two along N, which shares the left operand.",
                        "S": 1.1,
                        "R_impl": 1,
                        "R_perf": 2,
                    },
                ]
                return says(f"```json\n{json.dumps({'hypotheses': listed})}\n```")
            case _:
                return says(f"A tile that suits the extents better.\n```ucu\n{program}```\n")

    def _program(self) -> str:
        """The problem's program with a schedule by chance."""
        sizes = ((64, 128, 256), (64, 128, 192, 256), (64,))
        shape = "x".join(str(self.chance.choice(of)) for of in sizes)
        stages, cluster = self.chance.choice(("auto", "3", "4", "5")), self.chance.choice(("1x1", "2x1"))
        block = f"schedule sm90a {{ tile {shape}  stages {stages}  cluster {cluster} }}"
        text = re.sub(r"\n\s*schedule sm90a.*?\}", "", self.subject.text, flags=re.S)
        if HIDDEN in text:  # a pipeline's first launch becomes a kernel, which can be scheduled
            kernel = f"kernel hidden({HIDDEN_TAKES}) -> bf16[T, F] {{\n  return {HIDDEN}\n\n  {block}\n}}\n"
            return f"{kernel}\n{text.replace(HIDDEN, 'hidden(x, up, up_bias)')}"
        return f"{text[: text.rindex('}')].rstrip()}\n\n  {block}\n}}\n"


HIDDEN = "gelu(dot[D](x, up) + up_bias)"
HIDDEN_TAKES = "x: bf16[T, D], up: bf16[F, D], up_bias: bf16[F]"


@dataclass
class Kept:
    """A journal in memory."""

    events: list[JournalEvent] = field(default_factory=list)

    def append(self, session: str, number: int, kind: str, body: Mapping[str, Any]) -> JournalEvent:
        self.events.append(JournalEvent(number, kind, body, ""))
        return self.events[-1]


@dataclass(frozen=True)
class Row:
    """Of one session: tokens are the server's."""

    problem: str
    dialogue: str
    requests: int
    prefix: int
    turn: int
    longest: int
    cached: float
    dollars: float
    uncached: float


def session(
    subject: ProblemDescription, name: dialogue.Name, server: Server, attempts: int, record: Path | None
) -> SessionState:
    chosen = SessionSettings(SEARCHES[name], name, Budget(attempts), StopRule(None, None), seed=3)  # type: ignore[arg-type]
    service: Any = open_service(KEY, base_url=server.url)
    if record is not None:
        service = RecordingService(service, record)
    begun = opened(Kept(), {"text": subject.text}, chosen, bound=1e-4, baseline=2e-4, id=name)
    return run(begun, ModelProposer(subject, service, ModelSettings(), toolbox(subject)), Planned(subject))


def measured(
    subject: ProblemDescription, file: str, name: dialogue.Name, attempts: int, record: Path | None
) -> Row:
    with serving(*[Model(subject)]) as server:
        server.scripts = Endless(server.scripts[0])
        state = session(subject, name, server, attempts, record)
        first = server.requests[0]
        prefix = sum(len(json.dumps(b)) // 4 for b in [*first["tools"], *first["system"]])
        turns = [len(r["messages"][0]["content"][0]["text"]) // 4 for r in server.requests]
        sent = [t.input + t.cached + t.written for t in server.counted]
    spend = state.spend
    plain = (spend.input + spend.cached + spend.written) * 4e-6 + spend.output * 20e-6
    return Row(
        file,
        name,
        len(sent),
        prefix,
        round(statistics.median(turns)),
        max(turns),
        sum(t.cached for t in server.counted) / sum(sent),
        spend.dollars,
        plain,
    )


class Endless(list[Any]):
    """A script that never ends."""

    def __init__(self, script: Any) -> None:
        super().__init__([script])

    def pop(self, index: Any = 0) -> Any:
        return self[0]


def shown(rows: Sequence[Row], subject: ProblemDescription) -> str:
    whole, told = len(prompt.prefix()) // 4, len(prompt.problem(subject)) // 4
    lines = [
        f"guide {len(guide()) // 4} tokens, with the game {whole}; {subject.program} {told}",
        "",
        "| problem | dialogue | requests | prefix | turn | longest | from cache | dollars | uncached |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {Path(r.problem).stem} | {r.dialogue} | {r.requests} | {r.prefix} | {r.turn} | {r.longest} | "
        f"{r.cached:.0%} | {r.dollars:.2f} | {r.uncached:.2f} |"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--attempts", type=int, default=40)
    parser.add_argument("--record", type=Path, help="folder for the recorded traffic")
    asked = parser.parse_args()
    rows = []
    for file, sizes in PROBLEMS.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        subject = subject_of(text, None, sizes, "sm90a", "H200", lane="bf16")
        for name in dialogue.DIALOGUES:
            record = asked.record and asked.record / f"{Path(file).stem}_{name}.jsonl"
            rows.append(measured(subject, file, name, asked.attempts, record))
    print(shown(rows, subject))


if __name__ == "__main__":
    main()
