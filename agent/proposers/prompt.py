"""This module writes what a model is told: a prefix that stays, and a turn that changes.

    tools, guide and game     the same for every problem          \\  cached
    problem                   the same for every turn of one      /
    turn                      the role's window over the tree, earlier notes, what is asked

Windows are STARK's (arXiv 2510.16996): a planner sees the candidate, the root, its children and the leaders;
a writer also what was made of its siblings; a repairer its siblings. What the audit rejected is shown by its
verdict alone: its program is to inspire nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ucutlass.agent.advisor import headline
from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.edits import BadEdit, addresses
from ucutlass.agent.module import TorchModule
from ucutlass.agent.outcome import RejectedOutcome, RepeatedOutcome, TimedOutcome, words
from ucutlass.agent.proposers import triage
from ucutlass.agent.proposers.instructions import ROLES, RULES, SOURCE
from ucutlass.agent.proposers.problem_facts import ProblemDescription
from ucutlass.agent.proposers.quoting import plain, quoted, uncommented
from ucutlass.agent.proposers.source_patch import FILE
from ucutlass.agent.proposers.tools import described
from ucutlass.agent.session import Ask, SessionState
from ucutlass.agent.source_files import CandidateFiles
from ucutlass.agent.tree import ROOT, CandidateNode, CandidateTree
from ucutlass.diagnostics import ProgramError
from ucutlass.guide import guide
from ucutlass.runtime.module.signature import names
from ucutlass.shapes import ShapeError

LEADERS = 5
MOST_NODES = 16
"""Of a window, its own candidate and the root counted: some 6,000 tokens at most of ordinary programs."""

MOST_PROBLEM = 24_000
MOST_PROGRAM = 4_000
MOST_OUTCOME = 1_800
MOST_COMPILED = 2_400
MOST_ADVICE = 2_000
MOST_NOTE = 3_000
MOST_FILE = 80_000
"""Of the CUDA of the candidate named: more than any that an emitter writes."""

MOST_DIFFERENCE = 3_000


def prefix(source: bool = False) -> str:
    """Returns what is the same for every problem; `source`: of a session at source level."""
    more = f"{SOURCE}\n" if source else ""
    return f"{RULES}\n{more}# The language\n\n{guide()}"


def problem(subject: ProblemDescription) -> str:
    """Returns what is the same for every turn of a problem."""
    parts = [
        "# The problem",
        f"Program `{subject.program}`, for {subject.device} ({subject.arch}).",
        "" if subject.module is None else module(subject.module, subject.program),
        quoted("the problem's program, candidate 0", subject.text, MOST_PROBLEM) if subject.text else "",
        "\n".join(f"- {fact}" for fact in subject.facts),
        _precision(subject),
    ]
    if subject.bound:
        parts.append("Speed of light, by computation:\n" + "\n".join(f"- {line}" for line in subject.bound))
    if subject.baseline:
        parts.append(quoted("what is to be beaten", subject.baseline, 600))
    if subject.memory:
        listed = "\n".join(f"- {' '.join(m.split())}" for m in subject.memory)
        parts.append(quoted("verified conclusions of earlier problems", listed, 4_000))
    return "\n\n".join(p for p in parts if p) + "\n"


def module(torch_module: TorchModule, program: str) -> str:
    """Returns what a PyTorch module says that a candidate computes, and the names that its program meets it
    by."""
    names_ = [f"- `{name}`, {entry}" for name, entry in names(torch_module.facts).items()]
    gives = [f"- {entry}" for entry in torch_module.facts.results]
    mode = "train() mode" if torch_module.facts.training else "eval() mode"
    statistics = ": its norms take the statistics of the batch" if torch_module.facts.batch_statistics else ""
    return "\n\n".join(
        [
            f"What is computed, a PyTorch module says, not a program: forward of `Model` in {mode}{statistics}. "
            f"A candidate is a kernel or pipeline named `{program}` that computes the same. Its parameters are "
            "among the names below, with these element types and shapes in memory; order and dimension names are "
            "yours, and extents follow from the shapes. A name that the module lacks is refused; what is not "
            "needed may be left out. Numbers that the constructor was given stand in the program as numbers. The "
            "results are the module's, in order. Before anything is built both are evaluated in float64, without "
            "roundings, on other inputs and weights of these shapes: a constant that only fits the module's own "
            "is refused.",
            quoted("the PyTorch module", torch_module.source, MOST_PROBLEM),
            quoted("names, element types and shapes", "\n".join(names_), 8_000),
            "Results:\n" + "\n".join(gives),
        ]
    )


def _precision(subject: ProblemDescription) -> str:
    least = f"No candidate may work below {subject.compute_type}. " if subject.compute_type else ""
    whose = "the problem's program" if subject.module is None else "the candidate"
    return (
        f"{least}The reference evaluates {whose} in float64. Of each element an error bound is "
        "derived from the compute type and the length of its sums, 0 where nothing rounds; one element beyond it is "
        "wrong."
    )


# --- turns -----------------------------------------------------------------------


def turn(
    ask: Ask, state: SessionState, subject: ProblemDescription, files: CandidateFiles | None = None
) -> str:
    """Returns what changes: a step of the search. The same for the same call of the same session. `files` gives
    the candidates' CUDA, in a session at source level."""
    node = state.tree[ask.pick.parent]
    shown = window(ask, state.tree)
    parts = [f"# Step {ask.call}, role {ask.role}", _standing(state)]
    for n in shown:
        parts.append(_candidate(n, n.id == node.id))
        parts += [_source(n, state.tree, files)] if files is not None and n.source else []
    parts += _notes(ask, state)
    parts.append(f"The candidate named is candidate {node.id}.")
    if ask.role in ("plan", "implement", "phases", "analyse", "nominate"):
        parts.append(_compiled(node, subject))
    if ask.role in ("plan", "code", "debug", "implement", "phases"):
        parts.append(_addressed(node))
        parts += [_file(node, files)] if files is not None else []
    parts.append(ROLES[ask.role])
    return "\n\n".join(p for p in parts if p) + "\n"


def window(ask: Ask, tree: CandidateTree) -> list[CandidateNode]:
    """Returns the candidates that a role sees, by number: its own and the root, then as the role has it, at
    most MOST_NODES, the latest of each kind first."""
    node = tree[ask.pick.parent]
    groups: list[Iterable[CandidateNode]]
    match ask.role:
        case "plan":
            groups = [tree.leaders(LEADERS), _late(tree.children(node.id))]
        case "code":
            cousins = [c for s in tree.siblings(node.id) for c in tree.children(s.id)]
            groups = [_late(tree.children(node.id)), _late(cousins)]
        case "debug":
            groups = [_late(tree.siblings(node.id))]
        case "analyse" | "nominate" | "summarise" | "triage":
            groups = [tree.leaders(LEADERS), _late(tree.nodes)]
        case "implement" | "phases":
            groups = [tree.leaders(LEADERS), _late(tree.children(node.id)), _late(tree.siblings(node.id))]
    chosen = {node.id: node, ROOT: tree[ROOT]}
    for node_ in (n for group in groups for n in group):
        if len(chosen) >= MOST_NODES:
            break
        chosen.setdefault(node_.id, node_)
    return [chosen[at] for at in sorted(chosen)]


def _late(nodes: Sequence[CandidateNode]) -> list[CandidateNode]:
    return list(nodes)[::-1]


def _standing(state: SessionState) -> str:
    """Returns where the search stands, in numbers."""
    tree, scale = state.tree, state.scale
    best = tree.best()
    right = sum(isinstance(n.outcome, TimedOutcome) for n in tree.nodes)
    lines = [f"{len(tree)} candidates were judged, {right} of them right."]
    if best is not None and best.seconds is not None:
        far = triage.gap(state)
        gap = "" if far is None else f", {far:.3g} times the bound"
        lines.append(f"Best: candidate {best.id}, {_micro(best.seconds)}{gap}.")
    if scale.bound > 0:
        lines.append(f"Bound: {_micro(scale.bound)}.")
    if scale.baseline is not None:
        lines.append(f"To beat: {_micro(scale.baseline)}.")
    left = state.settings.budget.attempts
    if left is not None:
        lines.append(f"Attempts left: {max(0, left - state.spend.attempts)}.")
    return " ".join(lines)


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us"


def _candidate(node: CandidateNode, named: bool) -> str:
    """Returns what a role is shown of a candidate. An interval and interpreted advice, never raw counters:
    all of it of the one that is `named`, of others what decides their time."""
    origin = "the problem's own program" if node.parent is None else f"made from candidate {node.parent}"
    parts = [f"## Candidate {node.id}, {origin}"]
    if node.why and node.parent is not None:
        parts.append(quoted("its proposer's reason", node.why, 300))
    parts.append(quoted("its outcome", _outcome(node), MOST_OUTCOME))
    # The root's program stands in the prefix, and its comments are the problem's own.
    if node.id != ROOT and node.text and not isinstance(node.outcome, RejectedOutcome | RepeatedOutcome):
        parts.append(quoted("its program", uncommented(node.text), MOST_PROGRAM))
    if isinstance(node.outcome, TimedOutcome) and node.outcome.advice:
        advice = node.outcome.advice if named else headline(node.outcome.advice)
        parts.append(quoted("advice", advice, MOST_ADVICE))
    return "\n".join(parts)


def _source(node: CandidateNode, tree: CandidateTree, files: CandidateFiles) -> str:
    """Returns what a source changes of the file of the candidate that it was made from."""
    if isinstance(node.outcome, RejectedOutcome | RepeatedOutcome):
        return ""
    before = files.of(tree[node.parent or ROOT]).text
    lines = difflib.unified_diff(before.splitlines(), node.source.splitlines(), FILE, FILE, lineterm="")
    what = f"what its source changes of the file of candidate {node.parent}"
    return quoted(what, "\n".join(lines), MOST_DIFFERENCE)


def _file(node: CandidateNode, files: CandidateFiles) -> str:
    """Returns the CUDA of the candidate that is gone on from."""
    file = files.of(node)
    if file.absent:
        return f"No source can stand for candidate {node.id}: {plain(file.absent)}"
    whose = "the source of" if node.source else "what the compiler emits for"
    return quoted(f"{FILE}, {whose} candidate {node.id}", file.text, MOST_FILE)


def _compiled(node: CandidateNode, subject: ProblemDescription) -> str:
    """Returns what the compiler says of a candidate that is right; what its rules say stands there already
    where the candidate has advice."""
    if not isinstance(node.outcome, TimedOutcome):
        return ""
    try:
        text = described(subject, candidate_text(node.text).checked, advised=not node.outcome.advice)
    except (ProgramError, ShapeError):
        return ""  # judged by another version or for another device: nothing to say
    return quoted(f"how the compiler runs candidate {node.id}, by its cost model", text, MOST_COMPILED)


def _outcome(node: CandidateNode) -> str:
    text = words(node.outcome)
    match node.outcome:
        case TimedOutcome(low=float(low), high=float(high)):
            return f"{text} ({low:.3f} to {high:.3f} at 95 %)"
        case _:
            return text


def _notes(ask: Ask, state: SessionState) -> list[str]:
    """Returns what earlier steps of this attempt answered, the hypothesis that is due, and for an in-prompt
    run its own last words."""
    notes = [n for n in ask.notes if n]
    parts = [quoted(f"note of step {at} of this attempt", n, MOST_NOTE) for at, n in enumerate(notes, 1)]
    if ask.role == "implement" and ask.pick.hypothesis is not None:
        ranked = next((n.text for n in reversed(state.notes) if n.role == "triage"), "")
        due = triage.due_hypothesis(ranked, ask.pick.hypothesis)
        if due is not None:
            parts.append(quoted("the hypothesis that this attempt belongs to", due, MOST_NOTE))
    if not notes and ask.role in ("phases", "implement", "analyse"):
        last = next((n.text for n in reversed(state.notes) if n.role in ("phases", "summarise")), "")
        parts += [quoted("note of an earlier attempt", last, MOST_NOTE)] if last else []
    return parts


def _addressed(node: CandidateNode) -> str:
    """Returns what can be edited in a candidate."""
    try:
        entries = addresses(node.text)
    except BadEdit:
        return f"Candidate {node.id} cannot be read as a program: edits are not possible, a program is."
    if not entries:
        return f"Candidate {node.id} holds no program: edits are not possible, a program is."
    lines = [f"{at} = {' '.join(text.split())}" for at, text in entries]
    return quoted(f"addresses in candidate {node.id}", "\n".join(lines), 3_000)
