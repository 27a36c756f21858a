"""What torch does while something runs: memory that is live at once, and passes over large arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, slots=True)
class Counted:
    """`peak`: bytes of the tensors made meanwhile that were live at once; of what an operation allocates
    and frees within itself nothing is seen. `passes`: the numbers that operations go through, of each the
    largest tensor's, over `large`; views are none."""

    peak: int
    passes: float


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.given: set[int] = set()
        self.peak = 0
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = [a for a in tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
        self.given |= {a.untyped_storage()._cdata for a in before} - self.live.keys()
        out = func(*args, **(kwargs or {}))
        after = [a for a in tree_leaves(out) if isinstance(a, Tensor)]
        if not func.is_view:
            self.numbers += max((a.numel() for a in (*before, *after)), default=0)
        for a in after:
            storage = a.untyped_storage()
            if storage._cdata not in self.given:
                self.live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.live = {k: v for k, v in self.live.items() if not v[0].expired()}
        self.peak = max(self.peak, sum(n for _, n in self.live.values()))
        return out


def counted(run: Callable[[], object], large: int) -> Counted:
    """Of one run. Tensors that it was given are not counted."""
    torch.zeros(1)  # torch's own tensors of the first call
    with _Counter() as mode:
        run()
    return Counted(mode.peak, mode.numbers / large)
