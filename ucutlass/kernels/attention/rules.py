"""Legality of attention: rules of its operands and extents, and rules of its schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ucutlass.ir.extents import evaluate
from ucutlass.ir.hardware import Arch
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.access import Access
from ucutlass.kernels.attention.match import MOST_HEAD
from ucutlass.kernels.attention.plan import (
    GROUP,
    AttentionProblem,
    AttentionSchedule,
    columns_at_once,
    is_tf32,
    padded,
    splits_f32,
)
from ucutlass.kernels.attention.smem import SHARED_BYTES, most_stages, shared_bytes
from ucutlass.kernels.rule import Breach, Rule

MOST_GROUPS = 3

MOST_KEYS = 256
"""Rows of a TMA box."""

HELD = {1: 208, 2: 208, 3: 128}
"""By warp groups: the registers of a thread that scores, their narrowed halves and outcomes may take; the
kernel gives it 232, 240 or 160, and the rest is addresses, maxima and sums."""

HELD_TF32 = {1: 208, 2: 208, 3: 144}
"""The same of the kernel of TF32, which keeps less beside them."""

ALIGNED = 16
"""Bytes that TMA moves."""

MOST_PARTS = 128
"""Parts that the second launch reads of a row at most."""


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A problem with its extents and target, before it has a schedule."""

    arch: Arch
    problem: AttentionProblem
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttentionCandidate:
    """A problem and a schedule, with the fields that the program fixed."""

    problem: AttentionProblem
    schedule: AttentionSchedule
    request: PartialSchedule


@dataclass(frozen=True, slots=True)
class SplitKeys:
    """A problem of so many keys, and the number of parts that the program cuts them into."""

    problem: AttentionProblem
    keys: int
    parts: int | str


# --- the problem ----------------------------------------------------------------------------


def _arch(c: AttentionCase) -> Breach | None:
    if c.arch.wgmma:
        return None
    return Breach(f"attention is compiled for sm90a; {c.arch.name} has no wgmma", "build it for sm90a")


def _head(c: AttentionCase) -> Breach | None:
    head = next((h for h in (c.problem.head, c.problem.head_v) if h > MOST_HEAD), None)
    if head is None:
        return None
    return Breach(
        f"a head of {head} elements; attention takes {MOST_HEAD} at most",
        "write the two dots and the softmax as stages of a pipeline",
    )


def _alignment(c: AttentionCase) -> Breach | None:
    if _head(c) is not None:
        return None
    names = {"q": c.problem.scores.a, "k": c.problem.scores.b, "v": c.problem.results.b}
    return next((b for name, a in names.items() if (b := _unaligned(name, a)) is not None), None)


def _unaligned(name: str, a: Access) -> Breach | None:
    elements = ALIGNED // a.elem.bytes
    if a.align >= elements:
        return None
    return Breach(
        f"{name} is aligned to {a.align * a.elem.bytes} bytes: TMA needs its address and every stride but "
        f"the innermost to be multiples of 16 bytes, {elements} elements of {a.elem.name}",
        f"make the head's extent a multiple of {elements} (pad it with zeros: they change no score) and start the "
        "tensor at a multiple of 16 bytes",
    )


def _sequences(c: AttentionCase) -> Breach | None:
    packed, named = c.problem.packed, {str(i): n for i, n in enumerate(c.sizes)}
    if packed is None or min(evaluate(o.count, named) for o in (packed.q, packed.k)) > 1:
        return None
    return Breach(
        "1 offset: n sequences have n + 1, the first 0 and the last the number of tokens",
        "pass the offset after the last sequence too",
    )


# --- the schedule ---------------------------------------------------------------------------


def held(problem: AttentionProblem, keys: int) -> int:
    """Registers of a thread: f32 scores, two of their 16-bit halves each, and outcomes, for 128 threads of
    64 rows. In TF32: scores, outcomes, fragments of a stage, and the sums of three passes."""
    if is_tf32(problem):
        piece = columns_at_once(problem)
        outcomes = -(-problem.head_v // piece) * piece // 2
        return outcomes + 32 + (keys // 2 + max(keys, piece) // 2 if splits_f32(problem) else keys // 2)
    return keys // 2 + keys // 4 + padded(problem.head_v) // 2


def prepares_ahead(problem: AttentionProblem, schedule: AttentionSchedule) -> bool:
    """Whether registers are left for the fragments of a second stage, in TF32."""
    return held(problem, schedule.keys) + 32 <= HELD_TF32[schedule.groups]


def _tile(c: AttentionCandidate) -> Breach | None:
    problem, s, request = c.problem, c.schedule, c.request
    rows, keys, head = request.tile or (GROUP * s.groups, s.keys, problem.head)
    most = 2 if problem.factor is None or problem.packed is not None else MOST_GROUPS
    if head != problem.head:
        message = f"tile {rows}x{keys}x{head}: the last extent is the head's, {problem.head} here"
        return Breach(message, f"use `tile {rows}x{keys}x{problem.head}`", ("tile",), None)
    if rows % GROUP or not 1 <= rows // GROUP <= most:
        why = " where the score has a function of its own, or sequences are packed" if most == 2 else ""
        message = f"{rows} rows: a warp group takes {GROUP}, and 1 to {most} of them share a tile{why}"
        return Breach(
            message, f"use `tile {GROUP * min(most, max(1, rows // GROUP))}x{keys}x{head}`", ("tile",), None
        )
    step = 32 if is_tf32(problem) else 16
    if keys % step or not step <= keys <= MOST_KEYS:
        best = min(MOST_KEYS, max(step, round(keys / step) * step))
        return Breach(
            f"blocks of {keys} keys: wgmma and TMA take multiples of {step} from {step} to {MOST_KEYS}",
            f"use `tile {rows}x{best}x{head}`",
            ("tile",),
            None,
        )
    limit = (HELD_TF32 if is_tf32(problem) else HELD)[s.groups]
    if (registers := held(problem, keys)) > limit:
        fits = [n for n in range(step, keys, step) if held(problem, n) <= limit]
        less = (rows, fits[-1]) if fits else (rows - GROUP, keys)
        return Breach(
            f"{keys} keys beside a head of {problem.head_v} take {registers} registers of a thread: "
            f"{s.groups} warp groups leave {limit}",
            f"use `tile {less[0]}x{less[1]}x{head}`",
            ("tile",),
            None,
        )
    return None


def _stages(c: AttentionCandidate) -> Breach | None:
    problem, s = c.problem, c.schedule
    most = most_stages(problem, s) if s.groups and s.keys else s.stages
    if 2 <= s.stages <= most:
        return None
    if most < 2:
        return Breach(
            f"two blocks of {s.keys} keys and values beside {GROUP * s.groups} rows take "
            f"{shared_bytes(problem, replace(s, stages=2))} bytes of shared memory of {SHARED_BYTES}",
            "use fewer keys or rows in `tile`",
            ("tile", "stages"),
            None,
        )
    return Breach(
        f"{s.stages} blocks of {s.keys} keys and values beside {GROUP * s.groups} rows take "
        f"{shared_bytes(problem, s)} bytes of shared memory: a block has {SHARED_BYTES}",
        f"use `stages {most}`",
        ("stages", "tile"),
        None,
    )


def most_parts(problem: AttentionProblem, keys: int) -> int:
    """Parts that the keys of a tile are cut into at most."""
    return 1 if problem.packed is not None else max(1, min(keys, MOST_PARTS))


def _parts(c: SplitKeys) -> Breach | None:
    most = most_parts(c.problem, c.keys)
    if isinstance(c.parts, int) and c.parts <= most:
        return None
    why = (
        "keys of packed sequences are not split"
        if c.problem.packed is not None
        else (
            f"the second launch reads at most {most} of a row"
            if isinstance(c.parts, int)
            else "attention has no stream-K: a softmax's parts are combined by a launch of their own"
        )
    )
    return Breach(f"split_k {c.parts}: {why}", f"use `split_k {most}` at most", ("split_k",))


_ALL = frozenset({"attention"})

PROBLEM_RULES: tuple[Rule[AttentionCase], ...] = (
    Rule(
        "UC0465",
        "attention's architecture",
        "attention for an architecture without wgmma",
        "PTX ISA: wgmma needs sm_90a",
        _arch,
        _ALL,
    ),
    Rule(
        "UC0466",
        "width of a head",
        "a head too wide for attention",
        "emit/attention: outcomes of a tile stay in registers, 255 of a thread",
        _head,
        _ALL,
    ),
    Rule(
        "UC0467",
        "attention's TMA alignment",
        "an operand of attention that TMA cannot address",
        "cuTensorMapEncodeTiled: globalAddress, globalStrides",
        _alignment,
        _ALL,
    ),
    Rule(
        "UC0468",
        "offsets of packed sequences",
        "packed sequences, of which there are none",
        "emit/attention: sequence e lies between offsets e and e + 1",
        _sequences,
        _ALL,
    ),
)

SCHEDULE_RULES: tuple[Rule[AttentionCandidate], ...] = (
    Rule(
        "UC0475",
        "attention's tile",
        "a tile that attention does not take",
        "PTX ISA, wgmma.mma_async: M 64; cuTensorMapEncodeTiled: boxes of 256 rows; 255 registers a thread",
        _tile,
        _ALL,
    ),
    Rule(
        "UC0476",
        "attention's stages and shared memory",
        "more blocks of keys than fit beside attention's rows",
        "CUDA C++ Programming Guide: 227 KiB of shared memory a block",
        _stages,
        _ALL,
    ),
)

SPLIT_RULES: tuple[Rule[SplitKeys], ...] = (
    Rule(
        "UC0477",
        "parts of attention's keys",
        "parts of attention's keys that are not combined",
        "emit/attention: the launch that combines parts",
        _parts,
        _ALL,
    ),
)

RULES: tuple[Rule[Any], ...] = (*PROBLEM_RULES, *SCHEDULE_RULES, *SPLIT_RULES)
"""In the order of their codes."""
