"""The comparison of an imported program's first call with the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ucutlass.api import LoadedProgram


class WrongResult(RuntimeError):
    """A program's first call was beyond the bounds of its float64 reference."""


def checked(program: LoadedProgram) -> Callable[..., Any]:
    """Returns the program's call, whose first is judged before its results are given. That call raises
    WrongResult."""
    from ucutlass.runtime import verify

    right = False

    def call(*arguments: Any) -> Any:
        nonlocal right
        if not right:
            verdict = verify.check(program.program, program.judged(*arguments), list(arguments))
            if verdict.state == "wrong":
                raise WrongResult(f"{program.program.name}: {verdict}")
            right = True
        return program(*arguments)

    return call
