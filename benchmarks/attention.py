"""Attention forward against each of torch's scaled-dot-product backends, and torch.compile, in one run.

    python -m benchmarks.attention --out attention.json [--only NAME,..] [--dtypes bf16,f16] [--no-compile]

16,384 tokens in all, 2,048 elements of all heads together; schedules are the compiler's own. Packed sequences
and few queries against many keys are `benchmarks.attention_forms`. Candidates take
turns (`ucutlass.runtime.timing.compare`), buffers rotate through more than twice the L2. FLOP/s count both
products, half of them where the mask is causal. `over_best` is the fastest candidate's time, but ours, over
ours; `error` and `theirs` are the errors' norms over the result's, of one head, against float64.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import ucutlass
from benchmarks import attention_forms, budget, relay
from benchmarks.attention_forms import BACKENDS, DTYPES, TOKENS, WIDTH
from benchmarks.report import geomean, machine
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.shapes import complete

ROW_SECONDS = 150.0
LENGTHS = (1024, 2048, 4096, 8192, 16384)

TEXT = """\
kernel attention(q: {t}[B, (H G), L, D], k: {t}[B, H, S=L, D], v: {t}[B, H, S, D]) -> {t}[B, (H G), L, D] {{
  s = dot[D](q, k) * rsqrt(size(D))
  p = softmax[S]({score})
  return dot[S]({t}(p), v)
}}
"""


@dataclass(frozen=True, slots=True)
class Problem:
    """`shared` query heads read one head of keys."""

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
        return TEXT.format(t=self.dtype, score=score)

    @property
    def flops(self) -> float:
        s = self.sizes
        full = 4.0 * s["B"] * s["H"] * s["G"] * s["L"] ** 2 * s["D"]
        return full / 2 if self.causal else full


def problems(dtypes: list[str]) -> list[Problem]:
    """The bar's: heads of 64 and 128 from 1k to 16k tokens; then other heads, and shared keys."""
    made = [Problem(d, n, c, t) for t in dtypes for d in (128, 64) for c in (False, True) for n in LENGTHS]
    other = [Problem(d, 4096, c, dtypes[0]) for d in (32, 96, 192, 256) for c in (False, True)]
    return [*made, *other, *(Problem(128, n, True, dtypes[0], 4) for n in (2048, 8192))]


def prebuild(wanted: Sequence[Problem | attention_forms.Form]) -> dict[str, str]:
    """Builds every kernel in parallel; why each that was not built was not."""
    pairs = []
    for p in wanted:
        checked = frontend.read_text(p.text)
        program = frontend.kernel(checked)
        planned = frontend.plan_kernel(checked, program, complete(program, p.sizes), "sm90a").planned
        pairs.append((source_of(checked, program, planned), planned.plan))
    made = build_sources(pairs)
    return {p.name: str(m)[:2000] for p, m in zip(wanted, made, strict=True) if not isinstance(m, Artifact)}


def row(item: dict[str, Any]) -> dict[str, Any]:
    if item["kind"] != "whole":
        return attention_forms.row(attention_forms.KINDS[item["kind"]](**item["problem"]))
    p = Problem(**item["problem"])
    s, dtype = p.sizes, DTYPES[p.dtype]
    heads = s["H"] * s["G"]
    bytes_ = 2 * s["B"] * s["L"] * s["D"] * (2 * heads + 2 * s["H"])
    sets = sets_for(bytes_)
    random = torch.Generator("cuda").manual_seed(p.length)

    def drawn(h: int) -> list[torch.Tensor]:
        shape = (s["B"], h, s["L"], s["D"])
        return [torch.randn(shape, device="cuda", generator=random).to(dtype) for _ in range(sets)]

    q, k, v = drawn(heads), drawn(s["H"]), drawn(s["H"])
    out = [torch.full_like(x, torch.nan) for x in q]
    kernel = ucutlass.loads(p.text)

    def eager(i: int) -> torch.Tensor:
        return F.scaled_dot_product_attention(q[i], k[i], v[i], is_causal=p.causal, enable_gqa=p.shared > 1)

    candidates: dict[str, Callable[[int], object]] = {"ours": lambda i: kernel(q[i], k[i], v[i], out=out[i])}
    for name, backend in BACKENDS.items():
        chosen = _with(backend, eager)
        if _works(chosen):
            candidates[name] = chosen
    if item["compile"]:
        torch._dynamo.reset()
        compiled = torch.compile(eager, mode="max-autotune-no-cudagraphs")
        compiled(0)
        candidates["compile"] = compiled
    kernel(q[0], k[0], v[0], out=out[0])
    error, theirs = (_error(y, q[0], k[0], v[0], p) for y in (out[0], eager(0)))
    times = compare(candidates, sets, rounds=7)
    best = min((t.median, n) for n, t in times.items() if n != "ours")
    return {
        "microseconds": {n: t.median for n, t in times.items()},
        "best": best[1],
        "over_best": best[0] / times["ours"].median,
        "tflops": p.flops / times["ours"].median * 1e-6,
        "their_tflops": p.flops / best[0] * 1e-6,
        "spread": max(t.spread for t in times.values()),
        "error": error,
        "theirs": theirs,
    }


def _with(backend: SDPBackend, eager: Callable[[int], torch.Tensor]) -> Callable[[int], object]:
    def run(i: int) -> torch.Tensor:
        with sdpa_kernel(backend):
            return eager(i)

    return run


def _works(run: Callable[[int], object]) -> bool:
    try:
        run(0)
    except RuntimeError:  # the backend does not take this head, or shared keys
        return False
    return True


def _error(y: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, p: Problem) -> float:
    """Of the last head of the last batch."""
    a, b, c = (x[-1, -1].double() for x in (q, k, v))
    s = a @ b.T / p.head**0.5
    if p.causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
    wanted = s.softmax(-1) @ c
    return float((y[-1, -1].double() - wanted).norm() / wanted.norm())


def rows_here(items: list[relay.Item], rows: str, item_seconds: float) -> int:
    """In the child of `relay.run`."""
    return relay.serve(row, items, rows, item_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of rows, or their beginnings, with commas")
    parser.add_argument("--dtypes", default="bf16,f16")
    parser.add_argument("--no-compile", action="store_true")
    budget.add_option(parser)
    options = parser.parse_args()
    starts = tuple(filter(None, options.only.split(",")))
    whole, forms = problems(options.dtypes.split(",")), attention_forms.forms()
    wanted = [p for p in (*whole, *forms) if not starts or p.name.startswith(starts)]
    unbuilt = prebuild(wanted)
    items = [
        {
            "name": p.name,
            "problem": asdict(p),
            "kind": getattr(p, "kind", "whole"),
            "compile": not options.no_compile and p.name.split()[1] in ("64", "128"),
        }
        for p in wanted
        if p.name not in unbuilt
    ]
    done = relay.run(
        "benchmarks.attention:rows_here",
        items,
        options.out.with_suffix(".jsonl"),
        item_seconds=ROW_SECONDS,
        deadline=budget.after(options.seconds),
    )
    budget.write(options.out, {"machine": machine(), "rows": done, "unbuilt": unbuilt})
    print(table(done, unbuilt))
    sys.exit(bool(unbuilt) or any(not r["ok"] for r in done))


def table(rows: list[dict[str, Any]], unbuilt: dict[str, str]) -> str:
    fine = [r for r in rows if r["ok"]]
    lines = [
        f"{r['name']:32} {r['microseconds']['ours']:8.1f} us {r['tflops']:6.1f} TFLOP/s  {r['best']:9} "
        f"{r['their_tflops']:6.1f}  over best {r['over_best']:.3f}  spread {r['spread']:.3f}  "
        f"error {r['error']:.2e} theirs {r['theirs']:.2e}"
        for r in fine
    ]
    bar = [
        r["over_best"] for r in fine if r["name"].split()[1] in ("64", "128") and "shared" not in r["name"]
    ]
    for kind in attention_forms.KINDS:
        found = [r["over_best"] for r in fine if r["name"].startswith(kind)]
        if found:
            lines.append(f"{kind}: geomean {geomean(found):.3f}, worst {min(found):.3f}, {len(found)} rows")
    if bar:
        lines.append(
            f"heads of 64 and 128: geomean {geomean(bar):.3f}, worst {min(bar):.3f}, {len(bar)} rows"
        )
    lines += [f"lost: {r['name']}: {r['error']}: {str(r['detail'])[:300]}" for r in rows if not r["ok"]]
    return "\n".join([*lines, *(f"not built: {n}: {why[:300]}" for n, why in unbuilt.items())])


if __name__ == "__main__":
    main()
