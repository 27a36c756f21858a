"""The operators of ucutlass.ops against the PyTorch code that each equals.

    python -m benchmarks.ops --out ops.json [--only linear,rms_norm] [--no-compile] [--quick]

Claim: the ready operators are right, and faster than eager PyTorch, torch.compile, and where they are installed
Liger and quack. bf16, three typical shapes each, nothing tuned. `over_best` is the fastest rival's time over
ours, `error` the norm of our error over the norm of the result that PyTorch computes in f32 of the same operands,
`theirs` the same of eager PyTorch. Eager experts are torch._grouped_mm, since PyTorch's own loop waits for the
device. A rival that raises is left out of its row, which says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from benchmarks import harness
from benchmarks.harness import Item, Row, machine
from ucutlass.ops.equivalents import ACTIVATIONS
from ucutlass.ops.registry import OPERATORS
from ucutlass.ops.table import TABLE, Results
from ucutlass.runtime.timing import compare, sets_for

ROW_SECONDS = 300.0
"""Of which the first call's builds and torch.compile's tuning take most."""

Arguments: TypeAlias = tuple[Any, ...]
Draw: TypeAlias = Callable[..., torch.Tensor]
Rival: TypeAlias = Callable[..., Results]


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """An operator's name behind `ucutlass::`, extents as the row's name has them, and its arguments, drawn on
    a device."""

    operator: str
    extents: tuple[int, ...]
    arguments: Callable[[Draw], Arguments]

    @property
    def name(self) -> str:
        return f"{self.operator} {'x'.join(map(str, self.extents))}"


# --- the cases ----------------------------------------------------------------------


def _linear(m: int, n: int, k: int) -> OperatorCase:
    return OperatorCase("linear", (m, n, k), lambda r: (r(m, k), r(n, k), r(n), "gelu"))


def _gated_mlp(m: int, d: int, f: int) -> OperatorCase:
    return OperatorCase("gated_mlp", (m, d, f), lambda r: (r(m, d), r(f, d), r(f, d), r(d, f), "silu"))


def _norms(m: int, d: int) -> tuple[OperatorCase, ...]:
    return (
        OperatorCase("rms_norm", (m, d), lambda r: (r(m, d), r(d), 1e-6)),
        OperatorCase("add_rms_norm", (m, d), lambda r: (r(m, d), r(m, d), r(d), 1e-6)),
        OperatorCase("layer_norm", (m, d), lambda r: (r(m, d), r(d), r(d), 1e-5)),
        OperatorCase("add_layer_norm", (m, d), lambda r: (r(m, d), r(m, d), r(d), r(d), 1e-5)),
    )


def _cross_entropy(t: int, v: int) -> OperatorCase:
    def arguments(r: Draw) -> Arguments:
        logits = r(t, v)
        return logits, torch.randint(v, (t,), device=logits.device), -100, "mean"

    return OperatorCase("cross_entropy", (t, v), arguments)


def _attention(b: int, h: int, kv: int, length: int, d: int) -> tuple[OperatorCase, ...]:
    def by_heads(r: Draw) -> Arguments:
        return r(b, h, length, d), r(b, kv, length, d), r(b, kv, length, d), True, d**-0.5

    def by_tokens(r: Draw) -> Arguments:
        return r(b, length, h, d), r(b, length, kv, d), r(b, length, kv, d), True, d**-0.5

    extents = (b, h, kv, length, d)
    return (OperatorCase("attention", extents, by_heads), OperatorCase("token_attention", extents, by_tokens))


def _experts(t: int, e: int, d: int, f: int) -> tuple[OperatorCase, ...]:
    def offsets(device: torch.device) -> torch.Tensor:
        """Segments of unequal lengths, the same in each run."""
        weights = torch.arange(1, e + 1).double().sqrt().cumsum(0)
        ends = (weights / weights[-1] * t).round().to(torch.int32)
        return torch.cat([torch.zeros(1, dtype=torch.int32), ends]).to(device)

    def one(r: Draw) -> Arguments:
        x = r(t, d)
        return x, r(e, f, d), offsets(x.device), None, "silu"

    def gated(r: Draw) -> Arguments:
        x = r(t, d)
        return x, r(e, f, d), r(e, f, d), r(e, d, f), offsets(x.device), "silu"

    extents = (t, e, d, f)
    return OperatorCase("expert_linear", extents, one), OperatorCase("expert_mlp", extents, gated)


CASES: tuple[OperatorCase, ...] = (
    *(_linear(*s) for s in [(4096, 4096, 4096), (128, 14336, 4096), (8192, 1024, 4096)]),
    *(_gated_mlp(*s) for s in [(4096, 4096, 14336), (128, 4096, 14336), (8192, 2048, 5632)]),
    *(case for s in [(8192, 4096), (4096, 8192), (65536, 1024)] for case in _norms(*s)),
    *(_cross_entropy(*s) for s in [(8192, 32000), (4096, 128256), (16384, 50257)]),
    *(
        case
        for s in [(4, 32, 8, 2048, 128), (1, 32, 32, 8192, 128), (16, 12, 12, 1024, 64)]
        for case in _attention(*s)
    ),
    *(
        case
        for s in [(8192, 8, 4096, 14336), (16384, 64, 2048, 1408), (512, 16, 2048, 4096)]
        for case in _experts(*s)
    ),
)


# --- rivals -------------------------------------------------------------------------


def _grouped(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch._grouped_mm(x, weight.transpose(-2, -1), offs=offsets[1:])
    return product


def _eager_expert_linear(
    x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, bias: None, activation: str
) -> torch.Tensor:
    return ACTIVATIONS[activation](_grouped(x, weight, offsets))


def _eager_expert_mlp(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    offsets: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    h = ACTIVATIONS[activation](_grouped(x, gate, offsets)) * _grouped(x, up, offsets)
    return _grouped(h, down, offsets)


EAGER: Mapping[str, Rival] = {"expert_linear": _eager_expert_linear, "expert_mlp": _eager_expert_mlp}
"""In place of the equivalent of the operators' table."""


def eager(operator: str) -> Rival:
    return EAGER.get(operator, TABLE[operator].equivalent)


def _liger(operator: str) -> Rival:
    """Raises ImportError, AttributeError where this Liger does not have it, KeyError where none has."""
    liger = import_module("liger_kernel.transformers.functional")

    def gated_mlp(x: Any, gate: Any, up: Any, down: Any, _: str) -> Results:
        linear = functional.linear
        result: torch.Tensor = linear(liger.liger_swiglu(linear(x, gate), linear(x, up)), down)
        return result

    calls: dict[str, Rival] = {
        "gated_mlp": gated_mlp,
        "rms_norm": lambda x, w, eps: liger.liger_rms_norm(x, w, eps),
        "add_rms_norm": lambda x, r, w, eps: liger.liger_fused_add_rms_norm(x, r, w, eps),
        "layer_norm": lambda x, w, b, eps: liger.liger_layer_norm(x, w, b, eps),
        "cross_entropy": lambda z, t, i, how: liger.liger_cross_entropy(z, t, ignore_index=i, reduction=how),
    }
    return calls[operator]


def _quack(operator: str) -> Rival:
    """Raises as `_liger` does."""
    quack = import_module("quack")
    layer_norm = partial(getattr, import_module("quack.rmsnorm"), "layernorm_fwd")
    calls: dict[str, Rival] = {
        "rms_norm": lambda x, w, eps: quack.rmsnorm(x, w, eps=eps),
        "add_rms_norm": lambda x, r, w, eps: quack.rmsnorm(x, w, residual=r, eps=eps, prenorm=True),
        "layer_norm": lambda x, w, b, eps: layer_norm()(x, w.float(), b.float(), eps),
        "cross_entropy": lambda z, t, i, how: quack.cross_entropy(z, t, ignore_index=i, reduction=how),
    }
    return calls[operator]


LIBRARIES: Mapping[str, Callable[[str], Rival]] = {"liger": _liger, "quack": _quack}


def rivals(operator: str, arguments: Arguments, compiles: bool) -> tuple[dict[str, Rival], dict[str, str]]:
    """Returns the rivals that compute these arguments, and why others do not."""
    calls: dict[str, Rival] = {"eager": eager(operator)}
    left_out: dict[str, str] = {}
    for library, call_of in LIBRARIES.items():
        try:
            call = call_of(operator)
            call(*arguments)
        except (ImportError, KeyError):
            continue
        except Exception as error:  # the row says what another library could not
            left_out[library] = f"{type(error).__name__}: {error}"[:300]
        else:
            calls[library] = call
    if compiles:
        calls["compile"] = harness.compiled(eager(operator), *arguments)
    return calls, left_out


# --- a row --------------------------------------------------------------------------


def normal(seed: int) -> Draw:
    """Returns a source of bf16 whose products keep their size, however long they are."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        values = torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(generator=generator)
        return values if len(shape) < 2 else values * shape[-1] ** -0.25

    return draw


def row(item: Item) -> Row:
    """Raises whatever a build, a launch or torch does."""
    case = next(c for c in CASES if c.name == item["name"])
    own = OPERATORS[case.operator]
    draw = normal(item["seed"])
    first = case.arguments(draw)
    sets = sets_for(sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor)))
    arguments = [first, *(case.arguments(draw) for _ in range(sets - 1))]
    with torch.no_grad():
        wide = [a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in first]
        exact = tensors_of(TABLE[case.operator].equivalent(*wide))
        error = error_of(own(*first), exact)
        theirs = error_of(TABLE[case.operator].equivalent(*first), exact)
        del exact, wide
        calls, left_out = rivals(case.operator, first, item["compile"])
        launches = {name: partial(_launch, call, arguments) for name, call in {"ours": own, **calls}.items()}
        times = compare(launches, sets)
    best = min(time.median for name, time in times.items() if name != "ours")
    return {
        "operator": case.operator,
        "error": error,
        "theirs": theirs,
        "left_out": left_out,
        "over_best": best / times["ours"].median,
        "over": {name: time.median / times["ours"].median for name, time in times.items() if name != "ours"},
        **harness.summary_of(times),
    }


def _launch(call: Rival, arguments: Sequence[Arguments], number: int) -> None:
    call(*arguments[number])


def tensors_of(results: Results) -> tuple[torch.Tensor, ...]:
    return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def error_of(results: Results, exact: Sequence[torch.Tensor]) -> float:
    """Returns the largest norm of an error over the norm of its result."""
    pairs = zip(tensors_of(results), exact, strict=True)
    return max(float((r.float() - e).norm() / e.norm()) for r, e in pairs)


def main() -> None:
    options = harness.parser_of(__doc__, compiles=True).parse_args()
    chosen = harness.selected(CASES, options, lambda case: case.name)
    more = {"seed": options.seed, "compile": harness.compiles(options)}
    items: list[Item] = [{"name": case.name, **more} for case in chosen]
    target, lines = "benchmarks.ops:row", harness.fresh(options.out.with_suffix(".jsonl"))
    rows = harness.run(target, items, lines, item_seconds=ROW_SECONDS)
    harness.write(options.out, {"machine": machine(), "rows": rows})
    print(table(rows))
    sys.exit(any(not r["ok"] for r in rows))


def table(rows: Sequence[Row]) -> str:
    right = [r for r in rows if r["ok"]]
    lines = [
        f"{r['name']:36} {r['microseconds']['ours']:9.1f} us  over best {r['over_best']:.3f}  "
        + "  ".join(f"{name} {ratio:.3f}" for name, ratio in r["over"].items())
        + f"  spread {r['spread']:.3f}  error {r['error']:.2g} theirs {r['theirs']:.2g}"
        + "".join(f"  without {name}: {why}" for name, why in r["left_out"].items())
        for r in right
    ]
    groups: dict[str, list[float]] = {}
    for r in right:
        groups.setdefault(r["operator"], []).append(r["over_best"])
        for name, ratio in r["over"].items():
            groups.setdefault(f"over {name}", []).append(ratio)
    return "\n".join([*lines, *harness.means(groups), *harness.lost_lines(rows, {})])


if __name__ == "__main__":
    main()
