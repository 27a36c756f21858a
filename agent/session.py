"""This module has a session: one problem's optimisation as a state machine over its journal.

    state = replayed(journal.events(id))          whatever was there, however it ended
    match due(state):
        case Ask(): ..      call the proposer, write `asked`, `answered`
        case Judge(): ..    judge a program, write `judged`
        case End(): ..      nothing is left to do

State is a fold over events and what is due a function of state, chance included, which is seeded by the
session's seed and the number of the call. So a session that was killed anywhere goes on as it would have:
what was judged is not judged again, and what was spent is counted once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ucutlass.agent import dialogue, search
from ucutlass.agent.budget import Budget, Spend, exhausted, spend_of_json
from ucutlass.agent.dialogue import DIALOGUES, WRITERS, Role
from ucutlass.agent.journal import JournalEvent
from ucutlass.agent.outcome import RefusedOutcome, RejectedOutcome, TimedOutcome, outcome_of_json
from ucutlass.agent.search import SEARCHES, Selection, TimeScale
from ucutlass.agent.stop import SearchStanding, StopRule, reason
from ucutlass.agent.tree import ROOT, CandidateNode, CandidateTree, Objective

# --- what is due -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Says that a proposer is to be called. `roles[step]` is the role of this call; `notes` are the answers
    of the steps before it. `repeated`: it was asked before and its answer was lost."""

    call: int
    pick: Selection
    roles: tuple[Role, ...]
    step: int
    notes: tuple[str, ...] = ()
    repeated: bool = False

    @property
    def role(self) -> Role:
        return self.roles[self.step]


@dataclass(frozen=True, slots=True)
class Judge:
    """Says that a program is to be judged: the `index`-th that call `call` proposed (None: the problem's
    own). `source` is as of ProposedProgram."""

    call: int | None
    index: int
    parent: int | None
    text: str
    why: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """Says that nothing is left to do, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Review:
    """Says that a model is to be asked for its opinion of a confirmed leader, by the node's number."""

    node: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """Says that a candidate is to be confirmed, of which there is a reading (`first`): `best` are the seconds of
    the fastest that was, None where none was, and `incumbent` its text. `complete`: it was confirmed, and is
    compared with every baseline. `source` is as of ProposedProgram."""

    node: int
    text: str
    first: TimedOutcome
    best: float | None
    incumbent: str = ""
    complete: bool = False
    source: str = ""


Due: TypeAlias = Ask | Judge | Confirm | Review | End

LEADS = 1.03
"""A candidate is confirmed where its reading is at most so many times the best confirmed one: two readings of
one kernel differ by a per cent or two."""

PROMPT = 0.95
"""A reading of more than this share of the best confirmed time is confirmed at the search's end: a confirmation
takes as long as ten attempts, and the next leader makes it needless."""

# --- what is known ---------------------------------------------------------------


Depth: TypeAlias = Literal["none", "static", "profiled"]
"""How far candidates are looked into for advice: not at all, by counting, and leaders by the profiler too."""

Level: TypeAlias = Literal["text", "source"]
"""What answers may hold: programs of the language, or CUDA source in place of what one is emitted as too."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Describes how a session works. `keep` is how many programs of one answer are taken, `proposer` who is
    asked, `advice` how far candidates are looked into, `objective` which of them is the best, `judge` the
    model that is asked for an opinion of leaders, "" for none, `level` what answers may hold: a session that is
    resumed goes on with the same."""

    search: search.Name = "flat"
    dialogue: dialogue.Name = "single"
    budget: Budget = field(default_factory=Budget)
    stop: StopRule = field(default_factory=StopRule)
    seed: int = 0
    keep: int = 4
    proposer: str = "rules"
    advice: Depth = "static"
    objective: Objective = "time"
    judge: str = ""
    level: Level = "text"


@dataclass(frozen=True, slots=True)
class ProposedProgram:
    """Describes a program as it was proposed, and its proposer's reason. `source` is a CUDA file that stands for
    the program with its plan, "" where the program is emitted."""

    text: str
    why: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class StepNote:
    """Describes what a step that writes no programs answered."""

    call: int
    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Opinion:
    """Describes what a model said of a candidate: a label of the audit's verdicts and `words`, or `fault`,
    why it said nothing. It decides nothing."""

    node: int
    model: str
    label: str = ""
    words: str = ""
    fault: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class SessionState:
    """Holds all that events say. `problem` is as its own module writes it, `text` its program, `pending` what
    was proposed and not judged, `open_ask` the call without an answer. `failures` are calls that ended in an
    error, in words. `measured` are the candidates that the latest call had measured while it was answered,
    `messages` what judging had to say of the machine, `opinions` what a model said of leaders, by node.
    `incomplete` are confirmed nodes that were not compared with every baseline, `behind` those that lost a race
    against a confirmed one, and stay provisional."""

    problem: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    settings: SessionSettings = field(default_factory=SessionSettings)
    scale: TimeScale = field(default_factory=TimeScale)
    tree: CandidateTree = field(default_factory=CandidateTree)
    pending: list[Judge] = field(default_factory=list)
    notes: list[StepNote] = field(default_factory=list)
    spend: Spend = field(default_factory=Spend)
    open_ask: Ask | None = None
    last: Ask | None = None
    failures: list[str] = field(default_factory=list)
    ended: str | None = None
    calls: int = 0
    number: int = 0
    measured: set[int] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)
    opinions: dict[int, Opinion] = field(default_factory=dict)
    incomplete: set[int] = field(default_factory=set)
    behind: set[int] = field(default_factory=set)


class NotASession(ValueError):
    """Raised for events that no session wrote."""


def replay_events(events: Iterable[JournalEvent]) -> SessionState:
    """Returns the state after these events. Raises NotASession."""
    state = SessionState()
    for event in events:
        try:
            advance(state, event)
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            words = f"event {event.number} ({event.kind}) does not follow: {problem!r}"
            raise NotASession(words[:400]) from problem
    return state


def advance(state: SessionState, event: JournalEvent) -> None:
    """Takes one event into the state."""
    body = event.body
    if event.number != state.number:
        raise ValueError(f"event {state.number} was expected")
    state.number += 1
    match event.kind:
        case "opened":
            state.problem, state.text = body["problem"], body["problem"]["text"]
            state.settings = settings_of_json(body["settings"])
            state.scale = TimeScale(body["bound"], body["baseline"])
            state.tree.objective = state.settings.objective
            state.spend += spend_of_json(body.get("spend", {}))
            why = "the problem's own program" if state.text else "there is no program yet: write the first"
            state.pending = [Judge(None, 0, None, state.text, why)]
        case "changed":
            state.settings = replace(state.settings, budget=Budget(**body["budget"]))
            state.ended = None
        case "asked":
            state.open_ask = _ask_of_json(body)
            state.measured = set()
            state.calls = max(state.calls, state.open_ask.call + 1)
        case "spent":
            state.spend += spend_of_json(body["spend"])
        case "failed":
            state.failures.append(body["words"])
        case "answered":
            _answered(state, body)
        case "judged":
            _judged(state, body)
        case "measured":
            _measured(state, body)
        case "confirmed":
            _confirmed(state, body)
        case "opinion":
            opinion = Opinion(**body["opinion"])
            state.opinions[state.tree[opinion.node].id] = opinion
            state.spend += Spend(seconds=opinion.seconds)
        case "ended":
            state.ended = body["why"]
        case other:
            raise ValueError(f"no event is of kind {other!r}")


def _answered(state: SessionState, body: Mapping[str, Any]) -> None:
    ask = state.open_ask
    if ask is None or ask.call != body["call"]:
        raise ValueError("nobody asked")
    state.open_ask, state.last = None, ask
    state.spend += spend_of_json(body["spend"])
    if body["note"]:
        state.notes.append(StepNote(ask.call, ask.role, body["note"]))
    if ask.role not in WRITERS:
        return
    if body["exhausted"]:
        state.tree.spent.add(ask.pick.parent)
    parent = ask.pick.parent
    state.pending = [
        Judge(ask.call, i, parent, p["text"], p["why"], p.get("source", ""))
        for i, p in enumerate(body["programs"])
    ]


def _judged(state: SessionState, body: Mapping[str, Any]) -> None:
    judged = state.pending.pop(0)
    if (judged.call, judged.index) != (body["call"], body["index"]):
        raise ValueError("another program was due")
    outcome = outcome_of_json(body["outcome"])
    node = state.tree.add(judged.parent, body["key"], judged.text, judged.why, outcome, judged.source)
    _learn(state, node, body)


def _measured(state: SessionState, body: Mapping[str, Any]) -> None:
    """Adds a candidate that a proposer had measured before it answered: a node as any other."""
    ask = state.open_ask
    if ask is None or ask.call != body["call"]:
        raise ValueError("nobody asked")
    outcome = outcome_of_json(body["outcome"])
    node = state.tree.add(ask.pick.parent, body["key"], body["text"], body["why"], outcome)
    state.measured.add(node.id)
    _learn(state, node, body)


def _confirmed(state: SessionState, body: Mapping[str, Any]) -> None:
    node = state.tree[body["node"]]
    if body.get("behind"):
        state.behind.add(node.id)
        _learn(state, node, body)
        return
    state.tree.confirm(node.id, outcome_of_json(body["outcome"]))
    state.incomplete.discard(node.id)
    if body.get("incomplete"):
        state.incomplete.add(node.id)
    _learn(state, state.tree[node.id], body)


def _learn(state: SessionState, node: CandidateNode, body: Mapping[str, Any]) -> None:
    """Takes what an event says besides a node's outcome."""
    state.messages += body.get("said", [])
    state.spend += spend_of_json(body["spend"])
    if body.get("provisional"):
        state.tree.provisional.add(node.id)
    outcome = node.outcome
    if node.parent is None and isinstance(outcome, TimedOutcome) and outcome.gain is not None:
        # Measured in turns with the problem's own program: what every candidate is to beat.
        state.scale = replace(state.scale, baseline=outcome.gain * outcome.seconds)


# --- what is due -----------------------------------------------------------------


def due(state: SessionState) -> Due:
    """Returns what comes next; a function of the state."""
    if state.open_ask is not None:
        return replace(state.open_ask, repeated=True)
    if state.last is not None and state.last.step + 1 < len(state.last.roles):
        step = state.last.step + 1
        notes = tuple(n.text for n in state.notes if n.call >= state.calls - step)
        return replace(state.last, call=state.calls, step=step, notes=notes)
    why = stop_reason(state)
    if why is not None or not state.pending:
        leader = leading_reading(state)
        if leader is not None and (why is not None or not _may_wait(state, leader)):
            return leader
        if leader is None and (review := _reviewed(state)) is not None:
            return review
    if why is not None:
        return _incomplete_best(state) or End(why)
    if state.pending:
        return state.pending[0]
    chance = random.Random(f"{state.settings.seed}:{state.calls}")
    if len(state.tree) == 1 and isinstance(rejected := state.tree[ROOT].outcome, RejectedOutcome):
        return End(f"the problem's own program was rejected ({rejected.verdict}): {rejected.words}")
    rules = state.settings.proposer == "rules" and state.problem.get("module")
    if rules and len(state.tree) == 1 and isinstance(refused := state.tree[ROOT].outcome, RefusedOutcome):
        return End(f"the start program was refused, and rules write no other: {refused.words}")
    pick = SEARCHES[state.settings.search].search(state.tree, state.scale, chance)
    if pick is None:
        left = leading_reading(state) or _incomplete_best(state)
        return left or End("no candidate is left to go on from")
    roles = DIALOGUES[state.settings.dialogue](pick, len(state.tree) - 1)
    return Ask(state.calls, pick, roles, 0)


def leading_reading(state: SessionState) -> Confirm | None:
    """Returns the fastest of the readings that were not confirmed, where it would lead."""
    open_ = state.tree.provisional - state.behind
    readings = [n for n in state.tree.nodes if n.id in open_ and n.seconds is not None]
    first = min(readings, key=_seconds, default=None)
    if first is None:
        return None
    assert isinstance(first.outcome, TimedOutcome)
    firm = [n for n in state.tree.nodes if n.seconds is not None and n.id not in state.tree.provisional]
    incumbent = min(firm, key=_seconds, default=None)
    if incumbent is None:
        return Confirm(first.id, first.text, first.outcome, None, source=first.source)
    if _seconds(first) > LEADS * _seconds(incumbent):
        return None
    # A race is between two programs as they are emitted.
    rival = "" if first.source or incumbent.source else incumbent.text
    return Confirm(first.id, first.text, first.outcome, incumbent.seconds, rival, source=first.source)


def _may_wait(state: SessionState, leader: Confirm) -> bool:
    """Returns whether a leader's confirmation may wait for the search's end: it is little faster than what is
    confirmed, and nobody is to be told what only a confirmation says."""
    settings = state.settings
    informs = settings.objective != "time" or settings.advice == "profiled" or bool(settings.judge)
    return not informs and leader.best is not None and leader.first.seconds > PROMPT * leader.best


def _incomplete_best(state: SessionState) -> Confirm | None:
    """Returns the best at the end of a session, where there are baselines that it was not compared with, and
    time."""
    best, budget = state.tree.best(), state.settings.budget
    if best is None or best.id not in state.incomplete or not isinstance(best.outcome, TimedOutcome):
        return None
    if exhausted(Budget(None, seconds=budget.seconds, gpu_seconds=budget.gpu_seconds), state.spend):
        return None
    return Confirm(best.id, best.text, best.outcome, best.seconds, complete=True, source=best.source)


def _seconds(node: CandidateNode) -> float:
    assert node.seconds is not None
    return node.seconds


def _reviewed(state: SessionState) -> Review | None:
    """Returns the best, where a model's opinion of it is wanted and not known: of confirmed candidates alone,
    and while there are tokens and dollars. The problem's own program is its owner's."""
    best = state.tree.best()
    if not state.settings.judge or best is None or best.id == ROOT or best.id in state.opinions:
        return None
    budget = state.settings.budget
    model_budget = Budget(None, tokens=budget.tokens, dollars=budget.dollars)
    confirmed = isinstance(best.outcome, TimedOutcome) and best.outcome.records
    return Review(best.id) if confirmed and exhausted(model_budget, state.spend) is None else None


def stop_reason(state: SessionState) -> str | None:
    """Returns why no further attempt is made. The problem's own program is always judged: without it nothing
    is known of the problem."""
    if not len(state.tree):
        return None
    seconds = [n.seconds for n in state.tree.nodes]
    standing = SearchStanding(seconds, state.scale.bound, state.scale.baseline, state.spend)
    return reason(state.settings.stop, state.settings.budget, standing)


# --- as JSON ---------------------------------------------------------------------


def settings_to_json(settings: SessionSettings) -> dict[str, Any]:
    return asdict(settings)


def settings_of_json(value: Mapping[str, Any]) -> SessionSettings:
    """Raises TypeError, KeyError for what are no settings."""
    held = {**value, "budget": Budget(**value["budget"]), "stop": StopRule(**value["stop"])}
    return SessionSettings(**held)


def ask_to_json(ask: Ask) -> dict[str, Any]:
    """Returns the body of an `asked` event; journals hold a selection's `repair` as `mend`."""
    body = asdict(ask)
    del body["repeated"]
    body["pick"]["mend"] = body["pick"].pop("repair")
    return body


def _ask_of_json(value: Mapping[str, Any]) -> Ask:
    held = dict(value["pick"])
    pick = Selection(repair=held.pop("mend", False), **held)
    return Ask(value["call"], pick, tuple(value["roles"]), value["step"], tuple(value["notes"]))


Kind: TypeAlias = Literal[
    "opened",
    "changed",
    "asked",
    "spent",
    "failed",
    "measured",
    "answered",
    "judged",
    "confirmed",
    "opinion",
    "ended",
]
"""Of events, in the order in which a session may meet them first."""

OUTCOMES: frozenset[str] = frozenset({"measured", "judged"})
"""Events that are a node of the tree each, in its order."""
