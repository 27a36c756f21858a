"""This package is the tuner: it says which kernels a program may become, which of them to build, and which is
fastest.

The package itself is what Python calls: `ucutlass.tune("linear.ucu", {"M": 4096})`; see
`ucutlass.tune.api.tune`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ucutlass.tune.api import TuningResult


class _Called(ModuleType):
    """Makes the package callable: the name of the function is that of the folder."""

    def __call__(self, *arguments: Any, **options: Any) -> TuningResult:
        from ucutlass.tune.api import tune

        return tune(*arguments, **options)


sys.modules[__name__].__class__ = _Called
