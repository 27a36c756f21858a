"""`ucc optimize`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from ucutlass.agent import dialogue, search
from ucutlass.agent.dialogue import DIALOGUES
from ucutlass.agent.integrity.precision import LaneUnknown
from ucutlass.agent.journal import Journal, NoSuchSession
from ucutlass.agent.many import PREFIX, NoStart
from ucutlass.agent.outcome import Timed, words
from ucutlass.agent.problem import Problem, Unbound
from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.reading import Reading, problem_at
from ucutlass.agent.run import Session, resumed
from ucutlass.agent.search import SEARCHES
from ucutlass.agent.session import NotASession, Settings, State
from ucutlass.agent.spend import Budget
from ucutlass.agent.stop import Stop
from ucutlass.cli import show
from ucutlass.cli.asking import Asking, chosen_proposer, maker
from ucutlass.cli.engines import at_hand, opened
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import (
    Positive,
    arch_option,
    json_option,
    kernel_option,
    module_options,
    seconds_option,
    sizes_option,
)
from ucutlass.cli.working import Working, working_options
from ucutlass.engine.work import LIMIT_SECONDS, WAIT_SECONDS
from ucutlass.runtime.module.facts import Mode, Precision, Unusable
from ucutlass.shapes import parse_sizes

_NO_GPU = "nothing was optimised: there is no NVIDIA GPU here that a compile target serves"

PROPOSERS = ("rules", "anthropic", "command")

SEARCH: Mapping[str, search.Name] = {"rules": "flat", "anthropic": "epsilon", "command": "epsilon"}
"""By proposer, where none is asked for: see docs/agent.md."""

EFFORTS = ("low", "medium", "high", "xhigh", "max")

BASELINES = ("eager", "compile", "compile-max-autotune", "cublas", "none")


@click.command("optimize")
@click.argument("file", required=False, type=click.Path(exists=True, path_type=Path))
@sizes_option
@kernel_option
@arch_option(None)
@click.option("--resume", "id", metavar="ID", help="Go on with a session instead of FILE.")
@click.option(
    "--proposer", type=click.Choice(PROPOSERS),
    help="What makes candidates: rules (the default) needs no model, anthropic is a model over the Messages "
    "API, command any program.",
)  # fmt: skip
@click.option("--model", metavar="NAME", help="Which model of anthropic.")
@click.option("--effort", type=click.Choice(EFFORTS), help="How hard the model works; by default its own.")
@click.option("--command", "program", metavar="WORDS", help="The program of the proposer command.")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Keep a model's traffic.")
@click.option("--replay", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Answer from kept traffic instead of a model.")  # fmt: skip
@click.option("--no-memory", is_flag=True, help="Tell a model nothing of earlier sessions.")
@click.option(
    "--search", "how", type=click.Choice(tuple(SEARCHES)),
    help="Which candidate to go on from; by default flat for rules, epsilon for others.",
)  # fmt: skip
@click.option(
    "--dialogue", "steps", type=click.Choice(tuple(DIALOGUES)), default="single", show_default=True,
    help="In which steps a proposer is asked.",
)  # fmt: skip
@click.option("--attempts", type=click.IntRange(min=0), help="Most candidates to judge; 40 by default.")
@click.option("--tokens", type=click.IntRange(min=1), help="Most tokens of a model.")
@click.option("--dollars", type=Positive(), help="Most money for a model.")
@click.option("--gpu-seconds", type=Positive(), help="Most seconds on the GPU.")
@click.option("--seconds", type=Positive(), help="Most seconds, waiting for the GPU not counted.")
@click.option("--eps", type=Positive(), default=0.05, show_default=True,
              help="Stop within this share of the bound, where the baseline is beaten.")  # fmt: skip
@click.option("--patience", type=click.IntRange(min=1), default=12, show_default=True,
              help="Stop after so many attempts without progress, where the baseline is beaten.")  # fmt: skip
@click.option("--never-stop", is_flag=True, help="Spend the whole budget, whatever was reached.")
@module_options
@click.option("--run-attempts", type=click.IntRange(min=1), help="Most candidates of a run over a folder.")
@click.option("--lane", metavar="LANE", help="The least precision, such as bf16; by default FILE's own.")
@click.option("--baseline", type=click.Choice(BASELINES), default="eager", show_default=True,
              help="What candidates that would lead are timed in turns with.")  # fmt: skip
@click.option("--seed", default=0, help="Seed of the arguments and of every choice.")
@working_options
@click.option("-o", "output", type=click.Path(dir_okay=False, path_type=Path), help="Write the best program.")
@click.option("--journal", type=click.Path(dir_okay=False, path_type=Path), help="Another journal.")
@seconds_option("--limit", LIMIT_SECONDS, "Seconds that each process that launches kernels may take.")
@seconds_option("--wait", WAIT_SECONDS, "Seconds to wait for another process that times.")
@json_option
def command(
    file: Path | None, sizes: tuple[str, ...], name: str | None, arch: str | None, id: str | None,
    proposer: str | None, model: str | None, effort: Any, program: str | None, record: Path | None,
    replay: Path | None, no_memory: bool, how: search.Name | None, steps: dialogue.Name,
    attempts: int | None, tokens: int | None, dollars: float | None, gpu_seconds: float | None,
    seconds: float | None, eps: float, patience: int,
    never_stop: bool, start: Path | None, mode: Mode, precision: Precision, run_attempts: int | None,
    lane: str | None, baseline: str, seed: int, output: Path | None,
    journal: Path | None, limit: float, wait: float, as_json: bool, working: Working,
) -> None:  # fmt: skip
    """Search for a faster program that computes what FILE's does, for these extents, on this GPU.

    FILE is a program, a PyTorch module in KernelBench's format (its first program beside it, or by --start),
    or a folder of either.

    What is computed stays; schedules, and where a pipeline is cut, are free. Every candidate is checked
    against the problem, built, held against its float64 reference and timed; one that would lead is also
    verified on the whole suite, timed in turns with the baseline and audited. All of it is written down
    as it happens: --resume goes on where a session stopped, however it did.
    """
    from ucutlass.agent.ahead import builders
    from ucutlass.agent.optimize import Where, begin, go_on

    with reported(as_json):
        if (file is None) == (id is None):
            fail(Status.CALL, "give FILE to begin a session, or --resume ID to go on with one", as_json)
        if (file is not None and file.is_dir()) or (id or "").startswith(PREFIX):
            from ucutlass.cli.many import optimized

            optimized(file, id, click.get_current_context().params)
            return
    with reported(as_json), closing(opened(working.spec, as_json)) as engine:
        kept = Journal.open(journal)
        asked = Budget(attempts, tokens, dollars, gpu_seconds, seconds)
        found = at_hand(engine)
        device = found.device if found is not None else None
        session: Session
        if id is not None:
            session = _resumed(kept, id, asked, as_json)
        else:
            assert file is not None
            target = arch or (found.arch.name if found is not None else "sm90a")
            asking_ = chosen_proposer(click.get_current_context().params)
            reading = Reading(
                target, parse_sizes(sizes), name, lane, mode, precision, start, asking_ != "rules", limit
            )
            problem = _problem(file, reading, as_json)
            if problem.module is not None and baseline == "cublas":
                fail(Status.CALL, "cublas is the bare product of a program: a module has none", as_json)
            if found is None:
                fail(Status.MACHINE, _NO_GPU, as_json)
            stop = Stop(None, None) if never_stop else Stop(eps, patience)
            budget = replace(asked, attempts=40 if attempts is None else attempts)
            wanted = Settings(
                how or SEARCH[asking_], steps, budget, stop, seed, proposer=asking_,
                advice=working.depth(asking_), objective=working.objective, judge=working.judge,
            )  # fmt: skip
            session = begin(kept, problem, wanted, device)
        if found is None:
            fail(Status.MACHINE, _NO_GPU, as_json)
        asking = Asking(session.state.settings.proposer, model, effort, program, record, replay, no_memory)
        if proposer not in (None, asking.proposer):
            words_ = f"session {session.id[:12]} was begun with --proposer {asking.proposer}"
            fail(Status.CALL, words_, as_json)
        click.echo(f"ucc: session {session.id}", err=True)
        if session.state.settings.judge:
            click.echo(
                f"ucc: {session.state.settings.judge} is asked about leaders; its tokens cost money", err=True
            )
        with builders(engine.cpus) as pool:
            held = "" if baseline == "none" else baseline
            where = Where(engine, device, held, limit, wait, working.measures, builders=pool)
            try:
                state = go_on(session, where, maker(asking, kept, session, as_json), _progress(as_json))
            except ProposerFailed as failure:
                again = f"ucc optimize --resume {session.id[:12]}"
                fail(Status.MACHINE, f"{failure}; then go on with {again}", as_json)
        best = state.tree.best()
        if output is not None and best is not None:
            output.write_text(best.text)
    _report(session, state, as_json)
    if best is None:
        sys.exit(Status.PROGRAM)


def _problem(file: Path, reading: Reading, as_json: bool) -> Problem:
    try:
        return problem_at(file, reading)
    except LaneUnknown as unknown:
        fail(Status.CALL, str(unknown), as_json)
    except NoStart as none:
        fail(Status.CALL, str(none), as_json)
    except (Unusable, Unbound) as wrong:
        fail(Status.PROGRAM, str(wrong), as_json)


def _resumed(kept: Journal, id: str, asked: Budget, as_json: bool) -> Session:
    try:
        session = resumed(kept, id)
    except NoSuchSession as problem:
        fail(Status.CALL, str(problem), as_json)
    except NotASession as problem:
        fail(Status.MACHINE, f"the session cannot be read: {problem}", as_json)
    given = {name: value for name, value in asdict(asked).items() if value is not None}
    if given:
        budget = replace(session.state.settings.budget, **given)
        return resumed(kept, session.id, budget)
    return session


def _progress(as_json: bool) -> Any:
    shown = said = heard = 0

    def on_event(state: State) -> None:
        nonlocal shown, said, heard
        for node in state.tree.nodes[shown:]:
            start = "the problem's own" if node.parent is None else f"from {node.parent}"
            click.echo(f"ucc: {node.id:3} {start}: {show.one_line(words(node.outcome))}", err=True)
        for words_ in state.said[said:]:
            click.echo(f"ucc: {show.one_line(words_)}", err=True)
        for one in list(state.opinions.values())[heard:]:
            what = f"{one.label}: {one.words}" if one.label else f"no opinion: {one.fault}"
            click.echo(f"ucc: {one.model} of {one.node}, deciding nothing: {show.one_line(what)}", err=True)
        shown, said, heard = len(state.tree), len(state.said), len(state.opinions)

    return on_event if not as_json else lambda _: None


def _report(session: Session, state: State, as_json: bool) -> None:
    best, root = state.tree.best(), state.tree[0]
    confirmed = best.outcome if best is not None and isinstance(best.outcome, Timed) else None
    row: dict[str, Any] = {
        "session": session.id, "program": state.problem["program"], "sizes": state.problem["sizes"],
        "bound": state.scale.bound * 1e6, "attempts": state.spend.attempts, "spend": asdict(state.spend),
        "stopped": state.ended, "own": None if root.seconds is None else root.seconds * 1e6,
        "best": None if best is None else {
            "candidate": best.id, "microseconds": (best.seconds or 0.0) * 1e6, "text": best.text,
            "gain": confirmed.gain if confirmed else None, "low": confirmed.low if confirmed else None,
            "high": confirmed.high if confirmed else None,
            "records": list(confirmed.records) if confirmed else [],
            "joules": confirmed.joules if confirmed else None,
        },
        "said": state.said, "opinions": [asdict(one) for one in state.opinions.values()],
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps(row, indent=2))
        return
    lines = [("session", session.id[:12]), ("stopped", str(state.ended)),
             ("attempts", str(state.spend.attempts)), ("its own program", words(root.outcome))]  # fmt: skip
    if best is not None:
        lines += [("best", f"candidate {best.id}: {words(best.outcome)}")]
        lines += [("bound", f"{state.scale.bound * 1e6:.2f} us")] if state.scale.bound else []
    show.table(("", ""), lines)
    if best is not None and best.id:
        click.echo(best.text, nl=False)
