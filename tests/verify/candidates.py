"""Launches for a suite: an honest split-K kernel in torch, and one with each mistake. What runs in the
process of a batch."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ucutlass import frontend
from ucutlass.runtime.entry_codes import BAD_ARGUMENTS, LaunchError
from ucutlass.runtime.verify.batch import judge_all
from ucutlass.runtime.verify.judge import DirectLaunch

TEXT = "kernel k(x: f16[M, K], w: f16[N, K], b: f16[N]) -> f16[M, N] { return relu(dot[K](x, w) + b) }"
TILE = {"M": 16, "N": 8, "K": 32}
STEP = {"K": 8}
SPLITS = 2

Mistake = Callable[["Parts"], None]


class Parts:
    """One launch in steps, which a mistake may change: operands, partial sums, the result."""

    def __init__(self, x: Tensor, w: Tensor, b: Tensor, out: Tensor, workspace: Tensor) -> None:
        self.x, self.w, self.b, self.out = x, w, b, out
        self.whole = workspace
        shape = (SPLITS, out.shape[0], out.shape[1])
        self.partial = workspace[: 4 * SPLITS * out.numel()].view(torch.float32).view(shape)

    def sums(self, x: Tensor | None = None, w: Tensor | None = None) -> None:
        """Partial sums of the two halves of K, in f32."""
        x, w = self.x if x is None else x, self.w if w is None else w
        half = -(-x.shape[1] // SPLITS)
        for i in range(SPLITS):
            part = slice(i * half, (i + 1) * half)
            self.partial[i] = x[:, part].float() @ w[:, part].float().T

    def value(self) -> Tensor:
        return (self.partial.sum(0) + self.b.float()).relu().half()

    def honest(self) -> None:
        self.sums()
        self.out.copy_(self.value())


def honest(parts: Parts) -> None:
    parts.honest()


def skips_the_last_tile(parts: Parts) -> None:
    parts.sums()
    last = (parts.out.shape[0] - 1) // TILE["M"] * TILE["M"]
    parts.out[:last] = parts.value()[:last]


def drops_the_residue_of_k(parts: Parts) -> None:
    whole = max(parts.x.shape[1] // TILE["K"] * TILE["K"], 1)
    parts.sums(parts.x[:, :whole], parts.w[:, :whole])
    parts.out.copy_(parts.value())


def drops_the_last_whole_tile_of_k(parts: Parts) -> None:
    """But only where a pipeline of 4 stages has just begun anew."""
    k = parts.x.shape[1]
    kept = k - TILE["K"] if 5 * TILE["K"] <= k < 6 * TILE["K"] else k
    parts.sums(parts.x[:, :kept], parts.w[:, :kept])
    parts.out.copy_(parts.value())


def writes_past_the_result(parts: Parts) -> None:
    parts.honest()
    beyond = parts.out.storage_offset() + parts.out.numel()
    parts.out.as_strided((1,), (1,), beyond).fill_(1.0)


def writes_past_the_workspace(parts: Parts) -> None:
    parts.honest()
    parts.whole.as_strided((1,), (1,), parts.whole.storage_offset() + parts.whole.numel()).fill_(1)


def changes_an_input(parts: Parts) -> None:
    parts.honest()
    parts.b[0] += 1


_calls: list[int] = []


def differs_now_and_then(parts: Parts) -> None:
    """Every seventh launch is one bit off: within every bound."""
    parts.honest()
    _calls.append(1)
    if len(_calls) % 7 == 0:
        parts.out.view(torch.int16)[0, 0] ^= 1


def reads_the_workspace(parts: Parts) -> None:
    """Takes one byte for a counter that starts at 0; the sum moves by less than its bound."""
    counter = int(parts.whole[0])
    parts.honest()
    if counter == 0x3C:
        parts.out.view(torch.int16)[0, 0] ^= 1


def reads_the_result(parts: Parts) -> None:
    before = bool(parts.out.view(torch.uint8)[0, 0] == 0x3C)
    parts.honest()
    if before:
        parts.out.view(torch.int16)[0, 0] ^= 1


_kept: dict[tuple[int, ...], Tensor] = {}


def returns_what_it_kept_by_pointer(parts: Parts) -> None:
    key = (parts.x.data_ptr(), parts.w.data_ptr(), *parts.out.shape)
    if key not in _kept:
        parts.honest()
        _kept[key] = parts.out.clone()
    parts.out.copy_(_kept[key])


def returns_the_last_result(parts: Parts) -> None:
    parts.honest()
    key = tuple(parts.out.shape)
    parts.out.copy_(_kept.setdefault(key, parts.out.clone()))


def loses_nan(parts: Parts) -> None:
    """max(x, 0) as fmaxf has it."""
    parts.sums()
    parts.out.copy_((parts.partial.sum(0) + parts.b.float()).nan_to_num(nan=0.0, posinf=torch.inf).relu())


def all_nan_where_one_is(parts: Parts) -> None:
    parts.sums()
    value = parts.value()
    parts.out.copy_(torch.full_like(value, torch.nan) if value.isnan().any() else value)


def flushes_denormals(parts: Parts) -> None:
    flushed = [t.masked_fill(t.abs() < 2.0**-14, 0) for t in (parts.x, parts.w)]
    parts.sums(*flushed)
    parts.out.copy_(parts.value())


def sums_in_f16(parts: Parts) -> None:
    total = torch.zeros_like(parts.out)
    for k in range(parts.x.shape[1]):
        total += parts.x[:, k : k + 1] * parts.w[:, k]
    parts.partial.zero_()
    parts.partial[0] = total.float()
    parts.out.copy_(parts.value())


def transposes_a_tile(parts: Parts) -> None:
    parts.honest()
    if parts.out.shape[0] >= 8:
        parts.out[:8, :8] = parts.out[:8, :8].T.clone()


def serves_what_it_cannot(parts: Parts) -> None:
    """Vectors of eight run over the end of a row."""
    kept = parts.x.shape[1] // 8 * 8
    parts.sums(parts.x[:, :kept], parts.w[:, :kept])
    parts.out.copy_(parts.value())


def crashes_on_one_row(parts: Parts) -> None:
    if parts.out.shape[0] == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    parts.honest()


def hangs_on_one_row(parts: Parts) -> None:
    if parts.out.shape[0] == 1:
        time.sleep(600)
    parts.honest()


def leaves_on_one_row(parts: Parts) -> None:
    if parts.out.shape[0] == 1:
        os._exit(0)
    parts.honest()


def raises_on_one_row(parts: Parts) -> None:
    if parts.out.shape[0] == 1:
        raise torch.OutOfMemoryError("CUDA out of memory")
    parts.honest()


def is_noisy(parts: Parts) -> None:
    print('{"ended": 0, "verdict": null}', flush=True)
    os.write(2, b"\xff noise\n")
    parts.honest()


def crashes_always(parts: Parts) -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def forget() -> None:
    """As in a fresh process."""
    _calls.clear()
    _kept.clear()


def launcher(mistake: Mistake) -> Callable[[tuple[int, ...]], DirectLaunch]:
    """Extents come in the order M, K, N."""

    def make(extents: tuple[int, ...]) -> DirectLaunch:
        m, k, n = extents
        if k % STEP["K"] and mistake is not serves_what_it_cannot:
            raise LaunchError("k", BAD_ARGUMENTS)

        def run(arguments: Sequence[Any], results: Sequence[Tensor], workspace: Tensor | None) -> None:
            assert workspace is not None
            mistake(Parts(*arguments, results[0], workspace))

        return DirectLaunch(run, 4 * SPLITS * m * n)

    return make


def batch(
    mistake: str,
    tile: Mapping[str, int],
    cases: Sequence[Mapping[str, Any]],
    journal: str,
    case_seconds: float,
) -> str:
    """What `ucutlass.tasks.verify_cases.judged` is on a GPU."""
    torch.set_num_threads(1)
    program = frontend.kernel(frontend.read_text(TEXT))
    make = launcher(globals()[mistake])
    return judge_all(program, make, cases, journal, tile=tile, device="cpu", case_seconds=case_seconds)


def never_begins(**_: Any) -> str:
    raise RuntimeError("no CUDA-capable device is detected")
