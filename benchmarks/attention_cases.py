"""The rows of `benchmarks.attention`: rectangles, packed sequences, and few queries with many keys.

Rectangles and few queries stand against scaled-dot-product attention's backends, with `enable_gqa` where heads
share keys; where there is one query, also with a group's queries as rows. Packed rows stand against the
kernels behind torch's nested tensors, called with the same offsets.
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

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
TOKENS, WIDTH = 16384, 2048

LENGTHS = (1024, 2048, 4096, 8192, 16384)

WHOLE = """\
kernel attention(q: {t}[B, (H G), L, D], k: {t}[B, H, S=L, D], v: {t}[B, H, S, D]) -> {t}[B, (H G), L, D] {{
  s = dot[D](q, k) * rsqrt(size(D))
  p = softmax[S]({score})
  return dot[S]({t}(p), v)
}}
"""

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
    lengths = [10007] if which == "one" else []
    most = 4000 if which == "uneven" else 250
    while sum(lengths) < TOKENS:
        lengths.append(min(TOKENS - sum(lengths), draw.randint(1, most)))
    return lengths


@dataclass(frozen=True, slots=True)
class Whole:
    """Every query sees every key, or those before it. `shared` query heads read one head of keys."""

    kind: ClassVar[str] = "whole"
    head: int
    length: int
    causal: bool
    dtype: str
    shared: int = 1

    @property
    def name(self) -> str:
        shared = f" shared by {self.shared}" if self.shared > 1 else ""
        return f"{self.dtype} {self.head}{shared} {'causal' if self.causal else 'full'} {self.length}"

    @property
    def sizes(self) -> dict[str, int]:
        heads = max(self.shared, WIDTH // self.head)
        batch = max(1, TOKENS // self.length)
        return {"B": batch, "H": heads // self.shared, "G": self.shared, "L": self.length, "D": self.head}

    @property
    def text(self) -> str:
        score = "where(index(S) <= index(L), s, -inf)" if self.causal else "s"
        return WHOLE.format(t=self.dtype, score=score)

    @property
    def work(self) -> float:
        s = self.sizes
        full = 4.0 * s["B"] * s["H"] * s["G"] * s["L"] ** 2 * s["D"]
        return full / 2 if self.causal else full

    def arguments(self, draw: Callable[..., Tensor]) -> list[Tensor]:
        s = self.sizes
        shapes = ((s["B"], heads, s["L"], s["D"]) for heads in (s["H"] * s["G"], s["H"], s["H"]))
        return [draw(shape) for shape in shapes]

    def eager(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.shared > 1)

    def rivals(self, sets: Sequence[list[Tensor]]) -> Mapping[str, Callable[[int], Any]]:
        return {name: _under(backend, lambda i: self.eager(*sets[i])) for name, backend in BACKENDS.items()}

    def expected(self, arguments: list[Tensor]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Returns the last head of the last batch in float64, and what takes it from a result."""
        q, k, v = (x[-1, -1].double() for x in arguments)
        s = q @ k.T / self.head**0.5
        if self.causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
        return s.softmax(-1) @ v, lambda y: y[-1, -1]


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

    def rivals(self, sets: Sequence[list[Tensor]]) -> Mapping[str, Callable[[int], Any]]:
        longest = max(lengths_of(self.which))

        def flash(i: int) -> Any:
            q, k, v, ends = sets[i]
            return torch.ops.aten._flash_attention_forward(
                q, k, v, ends, ends, longest, longest, 0.0, self.causal, False
            )[0]

        def efficient(i: int) -> Any:
            q, k, v, ends = sets[i]
            results = torch.ops.aten._efficient_attention_forward(
                q[None], k[None], v[None], None, ends, ends, longest, longest, 0.0, int(self.causal)
            )
            return results[0][0]

        # cuDNN's, `_cudnn_attention_forward`, takes 50 to 70 ms a call: torch 2.11 plans it anew each time.
        return {"flash": flash, "efficient": efficient}

    def expected(self, arguments: list[Tensor]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Returns the last head of the sequence before the last, and what takes it from a result."""
        q, k, v, ends = arguments
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

    def rivals(self, sets: Sequence[list[Tensor]]) -> Mapping[str, Callable[[int], Any]]:
        from torch.nn.attention.bias import causal_lower_right

        def plain(i: int) -> Any:
            q, k, v = sets[i]
            mask: Any = None if self.queries == 1 else causal_lower_right(self.queries, self.keys)
            return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=self.shared > 1)

        rivals = {name: _under(backend, plain) for name, backend in BACKENDS.items()}
        if self.queries == 1:  # as one would write it by hand

            def grouped(i: int) -> Any:
                q, k, v = sets[i]
                rows = q.view(self.batch, self.heads, self.shared, self.head)
                return F.scaled_dot_product_attention(rows, k, v).view(q.shape)

            for name, backend in (("flash grouped", "flash"), ("cudnn grouped", "cudnn")):
                rivals[name] = _under(BACKENDS[backend], grouped)
        return rivals

    def expected(self, arguments: list[Tensor]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Returns the last head of the last batch in float64, and what takes it from a result."""
        q, k, v = (x[-1, -1].double() for x in arguments)
        s = q @ k.T / self.head**0.5
        late = torch.ones_like(s, dtype=torch.bool).triu(1 + self.keys - self.queries)
        return s.masked_fill(late, -torch.inf).softmax(-1) @ v, lambda y: y[-1, -1]


Problem: TypeAlias = Whole | Packed | Few
KINDS: Mapping[str, Callable[..., Problem]] = MappingProxyType({"whole": Whole, "packed": Packed, "few": Few})


def problems(dtypes: Sequence[str]) -> list[Problem]:
    """Returns the rows: heads of 64 and 128 from 1k to 16k tokens; other heads, and shared keys; packed
    sequences; few queries."""
    rectangles = [
        Whole(d, n, c, t) for t in dtypes for d in (128, 64) for c in (False, True) for n in LENGTHS
    ]
    rectangles += [Whole(d, 4096, c, dtypes[0]) for d in (32, 96, 192, 256) for c in (False, True)]
    rectangles += [Whole(128, n, True, dtypes[0], 4) for n in (2048, 8192)]
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
    return [*rectangles, *packed, *few]


def _under(backend: SDPBackend, run: Callable[[int], Any]) -> Callable[[int], Any]:
    def chosen(i: int) -> Any:
        with sdpa_kernel(backend):
            return run(i)

    return chosen
