"""What may happen in the processes of `ucc verify`; stands for `ucutlass.tasks.verify_cases`."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ucutlass import frontend
from ucutlass.handoff import checked_of
from ucutlass.reference import evaluate
from ucutlass.runtime.entry_codes import BAD_ARGUMENTS, LaunchError
from ucutlass.runtime.verify import DirectLaunch
from ucutlass.runtime.verify.batch import judge_all


def right(**given: Any) -> str:
    return _judge(given, lambda outs, results: [o.copy_(r) for o, r in zip(outs, results, strict=True)])


def whole(**given: Any) -> str:
    """A pipeline's stages, all of them right."""
    given["kernel"]["stages"] = given["kernel"]["stages"][:1]
    return right(**given)


def wrong(**given: Any) -> str:
    """The last element is left as it is."""

    def fill(outs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        for out, result in zip(outs, results, strict=True):
            out.reshape(-1)[:-1] = result.reshape(-1)[:-1]

    return _judge(given, fill)


def crash(**given: Any) -> str:
    def fill(outs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    return _judge(given, fill)


def _judge(given: dict[str, Any], fill: Any) -> str:
    kernel = given["kernel"]
    (stage,) = kernel["stages"]
    assert os.path.exists(stage["library"]) and stage["entry"].startswith("ucc_")  # noqa: PTH110
    program = frontend.program(checked_of(kernel["program"]), kernel["name"])

    def make(extents: tuple[int, ...]) -> DirectLaunch:
        if any(n % 8 for n in extents[1:]):
            raise LaunchError(program.name, BAD_ARGUMENTS)

        def run(arguments: Sequence[Any], outs: Sequence[Tensor], _: Tensor | None) -> None:
            fill(outs, evaluate(program, arguments))

        return DirectLaunch(run, 0)

    return judge_all(
        program,
        make,
        given["cases"],
        given["journal"],
        tile=given["tile"],
        device="cpu",
        case_seconds=given["case_seconds"],
    )
