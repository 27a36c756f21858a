"""Rows of `benchmarks.attention` that are no rectangles: packed sequences, and few queries with many keys.

Packed rows stand against the kernels behind torch's nested tensors, called with the same offsets; few
queries against scaled-dot-product attention's backends, with `enable_gqa` where heads share keys, and where
there is one query with a group's queries as rows. Bytes are those of all tensors, read or written once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import ucutlass
from ucutlass.runtime.timing import Timing, compare, launches_for, sets_for, summary

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
TOKENS, WIDTH = 16384, 2048

PACKED = """\
kernel packed(q: {t}[L, H, D], k: {t}[S=L, H, D], v: {t}[S, H, D], starts: i32[E]) -> {t}[L, H, D] {{
  own = segment(L, starts) == segment(S, starts)
  p = softmax[S](where(own{mask}, dot[D](q, k) * rsqrt(size(D)), -inf))
  return dot[S]({t}(p), v)
}}
"""

FEW = """\
kernel few(q: {t}[B, (H G), L, D], k: {t}[B, H, S, D], v: {t}[B, H, S, D]) -> {t}[B, (H G), L, D] {{
  s = dot[D](q, k) * rsqrt(size(D))
  p = softmax[S](where(index(S) <= index(L) + size(S) - size(L), s, -inf))
  return dot[S]({t}(p), v)
}}
"""


def lengths_of(which: str) -> list[int]:
    """Of 16,384 tokens, the lengths of sequences: `even` ones of 1,024, `uneven` ones of 1 to 4,000, `short`
    ones of 1 to 250, or `one` of 10,007 among short ones."""
    draw = random.Random(which)
    if which == "even":
        return [1024] * 16
    made = [10007] if which == "one" else []
    most = 4000 if which == "uneven" else 250
    while sum(made) < TOKENS:
        made.append(min(TOKENS - sum(made), draw.randint(1, most)))
    return made


@dataclass(frozen=True, slots=True)
class Packed:
    kind: ClassVar[str] = "packed"
    head: int
    which: str
    causal: bool
    dtype: str = "bf16"

    @property
    def name(self) -> str:
        return f"packed {self.head} {self.which} {'causal' if self.causal else 'full'}"

    @property
    def sizes(self) -> dict[str, int]:
        count = len(lengths_of(self.which)) + 1
        return {"L": TOKENS, "H": WIDTH // self.head, "D": self.head, "E": count}

    @property
    def text(self) -> str:
        return PACKED.format(t=self.dtype, mask=" and index(S) <= index(L)" if self.causal else "")

    @property
    def work(self) -> float:
        full = 4.0 * WIDTH * sum(n * n for n in lengths_of(self.which))
        return full / 2 if self.causal else full

    def arguments(self, draw: Callable[..., Tensor]) -> list[Tensor]:
        shape = (TOKENS, WIDTH // self.head, self.head)
        ends = torch.tensor([0, *lengths_of(self.which)]).cumsum(0)
        return [*(draw(shape) for _ in range(3)), ends.to("cuda", torch.int32)]

    def theirs(self, sets: Sequence[list[Tensor]]) -> Mapping[str, Callable[[int], Any]]:
        longest = max(lengths_of(self.which))

        def flash(i: int) -> Any:
            q, k, v, ends = sets[i]
            return torch.ops.aten._flash_attention_forward(
                q, k, v, ends, ends, longest, longest, 0.0, self.causal, False
            )[0]

        def efficient(i: int) -> Any:
            q, k, v, ends = sets[i]
            made = torch.ops.aten._efficient_attention_forward(
                q[None], k[None], v[None], None, ends, ends, longest, longest, 0.0, int(self.causal)
            )
            return made[0][0]

        # cuDNN's, `_cudnn_attention_forward`, takes 50 to 70 ms a call: torch 2.11 plans it anew each time.
        return {"flash": flash, "efficient": efficient}

    def wanted(self, given: list[Tensor]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The last head of the sequence before the last, in float64, and where it lies in a result."""
        q, k, v, ends = given
        at = slice(int(ends[-3]), int(ends[-2]))
        a, b, c = (x[at, -1].double() for x in (q, k, v))
        s = a @ b.T / self.head**0.5
        if self.causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
        return s.softmax(-1) @ c, lambda y: y[at, -1]


@dataclass(frozen=True, slots=True)
class Few:
    """`queries` of each of `heads` * `shared` heads, the last of a sequence of `keys`."""

    kind: ClassVar[str] = "few"
    head: int
    batch: int
    heads: int
    shared: int
    queries: int
    keys: int
    dtype: str = "bf16"

    @property
    def name(self) -> str:
        return f"few {self.head} {self.batch}x{self.heads}x{self.shared} {self.queries} of {self.keys}"

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "B": self.batch,
            "H": self.heads,
            "G": self.shared,
            "L": self.queries,
            "S": self.keys,
            "D": self.head,
        }

    @property
    def text(self) -> str:
        return FEW.format(t=self.dtype)

    @property
    def work(self) -> float:
        return 4.0 * self.batch * self.heads * self.shared * self.queries * self.keys * self.head

    def arguments(self, draw: Callable[..., Tensor]) -> list[Tensor]:
        keys = (self.batch, self.heads, self.keys, self.head)
        return [draw((self.batch, self.heads * self.shared, self.queries, self.head)), draw(keys), draw(keys)]

    def theirs(self, sets: Sequence[list[Tensor]]) -> Mapping[str, Callable[[int], Any]]:
        from torch.nn.attention.bias import causal_lower_right

        def plain(i: int) -> Any:
            q, k, v = sets[i]
            mask: Any = None if self.queries == 1 else causal_lower_right(self.queries, self.keys)
            return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=self.shared > 1)

        made = {name: _under(backend, plain) for name, backend in BACKENDS.items()}
        if self.queries == 1:  # as one would write it by hand

            def grouped(i: int) -> Any:
                q, k, v = sets[i]
                rows = q.view(self.batch, self.heads, self.shared, self.head)
                return F.scaled_dot_product_attention(rows, k, v).view(q.shape)

            for name, backend in (("flash grouped", "flash"), ("cudnn grouped", "cudnn")):
                made[name] = _under(BACKENDS[backend], grouped)
        return made

    def wanted(self, given: list[Tensor]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The last head of the last batch."""
        q, k, v = (x[-1, -1].double() for x in given)
        s = q @ k.T / self.head**0.5
        late = torch.ones_like(s, dtype=torch.bool).triu(1 + self.keys - self.queries)
        return s.masked_fill(late, -torch.inf).softmax(-1) @ v, lambda y: y[-1, -1]


Form: TypeAlias = Packed | Few
KINDS: Mapping[str, Callable[..., Form]] = MappingProxyType({"packed": Packed, "few": Few})


def forms() -> list[Form]:
    packed = [
        Packed(d, w, c) for d in (128, 64) for w in ("even", "uneven", "short", "one") for c in (False, True)
    ]
    few = [
        Few(128, 1, 8, 8, 1, 8192),
        Few(128, 1, 8, 8, 1, 32768),
        Few(128, 1, 8, 8, 1, 131072),
        Few(128, 16, 8, 8, 1, 8192),
        Few(128, 1, 8, 8, 16, 32768),
        Few(128, 4, 8, 4, 64, 8192),
        Few(128, 1, 32, 1, 1, 16384),
        Few(128, 64, 8, 4, 1, 4096),
        Few(64, 1, 8, 8, 1, 32768),
        Few(64, 4, 16, 1, 1, 16384),
    ]
    return [*packed, *few]


def row(p: Form) -> dict[str, Any]:
    random_ = torch.Generator("cuda").manual_seed(p.head)

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, device="cuda", generator=random_).to(DTYPES[p.dtype])

    first = p.arguments(draw)
    bytes_ = sum(x.numel() * x.element_size() for x in first) + first[0].numel() * 2
    sets = [first, *(p.arguments(draw) for _ in range(sets_for(bytes_) - 1))]
    out = [torch.full_like(s[0], torch.nan) for s in sets]
    kernel = ucutlass.loads(p.text)
    candidates: dict[str, Callable[[int], Any]] = {"ours": lambda i: kernel(*sets[i], out=out[i])}
    wanted, part = p.wanted(first)
    errors = {}
    for name, launch in p.theirs(sets).items():
        try:
            made = part(launch(0)).double()
            torch.cuda.synchronize()
        except Exception as refusal:  # torch has many ways to say no
            errors[name] = str(refusal)[:200]
            continue
        error = float((made - wanted).norm() / wanted.norm())
        if error < 0.02:
            candidates[name] = launch
        errors[name] = f"{error:.2e}"
    candidates["ours"](0)
    error = float((part(out[0]).double() - wanted).norm() / wanted.norm())
    timed = streamed if isinstance(p, Packed) else compare
    times = timed(candidates, len(sets), rounds=5, window_us=2000.0)
    best = min((t.median, n) for n, t in times.items() if n != "ours")
    ours = times["ours"].median
    return {
        "microseconds": {n: t.median for n, t in times.items()},
        "best": best[1],
        "over_best": best[0] / ours,
        "tflops": p.work / ours * 1e-6,
        "their_tflops": p.work / best[0] * 1e-6,
        "gigabytes_a_second": bytes_ / ours * 1e-3,
        "spread": max(t.spread for t in times.values()),
        "error": error,
        "theirs": float(errors[best[1]]),
        "others": errors,
    }


def streamed(
    candidates: Mapping[str, Callable[[int], Any]], sets: int, *, rounds: int, window_us: float
) -> dict[str, Timing]:
    """As `compare`, launched one after another: not all of torch's kernels of packed sequences stand in a
    graph. Launches are longer than what the host does for them."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    counts = {name: launches_for(launch, sets, window_us) for name, launch in candidates.items()}
    for turn in range(rounds):
        for name in list(candidates)[:: 1 if turn % 2 else -1]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            for i in range(counts[name]):
                candidates[name](i % sets)
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1000.0 / counts[name])
    return {name: summary(values) for name, values in times.items()}


def _under(backend: SDPBackend, run: Callable[[int], Any]) -> Callable[[int], Any]:
    def chosen(i: int) -> Any:
        with sdpa_kernel(backend):
            return run(i)

    return chosen
