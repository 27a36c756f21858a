"""Looks for fences and waits in the PTX of an adopted source that its instructions cannot do without.

Their lack need not show when a kernel runs: a copy begins so late that threads are done, most of the time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ucutlass.adopt.refusals import SourceRefused

_COMMENT = re.compile(r"//[^\n]*")


@dataclass(frozen=True, slots=True)
class FenceRule:
    """A kernel that has `instruction` needs one of `fences` (patterns, and their PTX in words)."""

    instruction: str
    fences: str
    words: str


_TMA_STORE = r"\bcp\.(?:reduce\.)?async\.bulk(?:\.tensor(?:\.\dd)?)?\.global\.shared::cta"
_PROXY_FENCE = r"\bfence\.proxy\.async"
_MEETING = r"\b(?:bar\.|barrier\.|mbarrier\.(?:try_wait|test_wait))"
_ORDERED = re.compile(f"(?P<fence>{_PROXY_FENCE})|(?P<meeting>{_MEETING})|(?P<store>{_TMA_STORE})")

RULES = (
    FenceRule(
        _TMA_STORE,
        _PROXY_FENCE,
        "it stores shared memory by TMA, and has no fence.proxy.async behind what threads wrote there",
    ),
    FenceRule(
        r"\bmbarrier\.init",
        r"\bfence\.(?:mbarrier_init|proxy\.async)",
        "it initialises mbarriers, and has no fence.mbarrier_init for those who use them",
    ),
    FenceRule(
        r"\bwgmma\.mma_async",
        r"\bwgmma\.fence",
        "it has wgmma.mma_async and no wgmma.fence before its registers",
    ),
    FenceRule(
        r"\bwgmma\.mma_async",
        r"\bwgmma\.wait_group",
        "it has wgmma.mma_async and no wgmma.wait_group behind it",
    ),
    FenceRule(
        r"\bcp\.async\.c[ag]\.",
        r"\bcp\.async\.(?:wait_group|wait_all|mbarrier)",
        "it copies by cp.async, and waits for no group",
    ),
)
"""PTX ISA: "Async proxy", "mbarrier", "wgmma.fence", "cp.async". Of a whole file: functions may be apart."""


def check(ptx: str) -> None:
    """Raises SourceRefused where a rule's instruction stands and none of its fences does."""
    code = _COMMENT.sub("", ptx)
    for rule in RULES:
        if re.search(rule.instruction, code) and not re.search(rule.fences, code):
            raise SourceRefused("fence", rule.words)
    if _stores_at_once(code):
        words = "it stores shared memory by TMA right behind a fence.proxy.async, and no barrier between them waits"
        raise SourceRefused(
            "fence", f"{words} for the other threads; where one warp alone wrote, say __syncwarp()"
        )


def _stores_at_once(code: str) -> bool:
    """Returns whether, in the order of the text, a store follows a fence without a place where threads meet."""
    last = ""
    for m in _ORDERED.finditer(code):
        if m.lastgroup == "store":
            if last == "fence":
                return True
        else:
            last = m.lastgroup or ""
    return False
