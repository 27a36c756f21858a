"""Steps that multiply matrices, and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from tests.importer.drawn_modules import Apply, Draft, Maker, Step, chosen


def _linear(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if not v.dim():
        return None
    out = pick([1, 2, 3, 5])
    w, b = d.state.weight(out, v.shape[-1]), d.state.weight(out)
    table = {
        "linear": lambda vs, m: F.linear(vs[i], m.weights[w], m.weights[b]),
        "linear without bias": lambda vs, m: F.linear(vs[i], m.weights[w]),
        "matmul of weights": lambda vs, m: vs[i] @ m.weights[w].t(),
        "linear relu linear": lambda vs, m: F.linear(F.relu(F.linear(vs[i], m.weights[w])), m.weights[w].t()),
        "matmul of a vector": lambda vs, m: vs[i] @ m.weights[w][0],
    }
    if v.dim() == 2:
        table["addmm"] = lambda vs, m: torch.addmm(m.weights[b], vs[i], m.weights[w].t(), beta=0.5, alpha=2)
        table["addmv"] = lambda vs, m: torch.addmv(vs[i][:, 0], vs[i], m.weights[w][0])
    if v.dim() == 3:
        table["baddbmm"] = lambda vs, m: torch.baddbmm(
            m.weights[b], vs[i], m.weights[w].t().expand(v.shape[0], -1, -1)
        )
    name = pick(sorted(table))
    return Step(name, (i,), (out,), table[name])


def _bilinear(d: Draft, i: int) -> Step | None:
    v = d.values[i]
    if v.dim() < 2 or v.shape[-1] > 6:
        return None
    w = d.state.weight(2, v.shape[-1], v.shape[-1])
    return Step("bilinear", (i,), (), lambda vs, m: F.bilinear(vs[i], vs[i] * 0.5, m.weights[w]))


def _product(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if not v.dim():
        return None
    out = pick([1, 2, 5])
    table: dict[str, Apply] = {"dot of itself": lambda t: t.flatten() @ t.flatten()}
    if v.dim() >= 2:
        table["product with itself"] = lambda t: t @ t.transpose(-1, -2)
        table["product transposed"] = lambda t: t.transpose(-1, -2) @ t
    if v.dim() == 1:
        table["outer"] = lambda t: torch.outer(t, t * 2)
        table["cartesian"] = lambda t: torch.meshgrid(t, t, indexing="ij")[0]
    if v.dim() == 3:
        w = d.state.weight(v.shape[1], out)
        return Step(
            "einsum",
            (i,),
            (out,),
            pick(
                [
                    lambda vs, m: torch.einsum("abc,bd->adc", vs[i], m.weights[w]),
                    lambda vs, m: torch.einsum("abc,bd->dca", vs[i], m.weights[w]),
                    lambda vs, m: torch.einsum("abc,abd->cd", vs[i], vs[i]),
                    lambda vs, m: torch.einsum("abc,abc->ab", vs[i], vs[i]),
                    lambda vs, m: torch.einsum("abc->ca", vs[i]),
                    lambda vs, m: torch.einsum("...c,...c->...", vs[i], vs[i]),
                ]
            ),
        )
    return chosen(d, i, table)


def _attention(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if v.dim() not in (3, 4):
        return None
    length, heads = v.shape[-2], v.shape[-3]
    w = d.state.weight(length, length)
    half = max(1, heads // 2)
    table: dict[str, Apply] = {
        "attention": lambda t: F.scaled_dot_product_attention(t, t * 0.5, t + 1),
        "attention causal": lambda t: F.scaled_dot_product_attention(t, t * 0.5, t + 1, is_causal=True),
        "attention scaled": lambda t: F.scaled_dot_product_attention(t, t * 0.5, t + 1, scale=0.25),
        "attention of one query": lambda t: F.scaled_dot_product_attention(t[..., -1:, :], t, t),
        "attention written out": lambda t: torch.softmax(t @ t.transpose(-1, -2) * 0.5, -1) @ t,
    }
    if v.dim() == 4 and heads % half == 0:
        table["attention of groups"] = lambda t: F.scaled_dot_product_attention(
            t, t[:, :half] * 0.5, t[:, :half] + 1, enable_gqa=True
        )
    masks = {
        "attention with a bias": lambda vs, m: F.scaled_dot_product_attention(
            vs[i], vs[i], vs[i] + 1, attn_mask=m.weights[w]
        ),
        "attention with a mask": lambda vs, m: F.scaled_dot_product_attention(
            vs[i], vs[i], vs[i] + 1, attn_mask=(m.weights[w] > 0) | torch.eye(length, dtype=torch.bool)
        ),
        "attention with a triangle": lambda vs, m: F.scaled_dot_product_attention(
            vs[i], vs[i], vs[i] + 1, attn_mask=torch.ones(length, length, dtype=torch.bool).tril()
        ),
    }
    if pick([True, False]):
        name = pick(sorted(masks))
        return Step(name, (i,), (), masks[name])
    return chosen(d, i, table)


def _heads(d: Draft, i: int) -> Step | None:
    """Heads split from one projection and joined behind attention, as layers of transformers do."""
    v = d.values[i]
    if v.dim() != 3 or v.shape[-1] % 2:
        return None
    b, length, width = v.shape
    w = d.state.weight(3 * width, width)

    def heads(vs: list[torch.Tensor], m: nn.Module) -> torch.Tensor:
        qkv = F.linear(vs[i], m.weights[w])  # type: ignore[index]
        q, k, z = (t.view(b, length, 2, width // 2).transpose(1, 2) for t in qkv.chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, z, is_causal=True)
        return y.transpose(1, 2).reshape(b, length, width)

    def rotated(vs: list[torch.Tensor], m: nn.Module) -> torch.Tensor:
        first, second = vs[i].chunk(2, -1)
        turned = torch.cat([-second, first], -1)
        angle = torch.arange(length)[:, None] * torch.arange(1, width + 1) * 0.1
        return vs[i] * angle.cos() + turned * angle.sin()

    table = {"heads": heads, "rotary": rotated}
    name = d.pick(sorted(table))
    return Step(name, (i,), (), table[name])


def _recurrent(d: Draft, i: int) -> Step | None:
    """A layer of gates over a sequence: every step's state, or the last."""
    v, pick = d.values[i], d.pick
    if v.dim() != 3:
        return None
    cell, batch_first, biased = pick(sorted(GATES)), pick([True, False]), pick([True, False])
    layers, directions, hidden = pick([1, 1, 2]), pick([1, 1, 2]), pick([1, 3, 4])
    names = []
    for depth in [v.shape[2]] + [directions * hidden] * (layers - 1):
        rows = GATES[cell] * hidden
        shapes = [(rows, depth), (rows, hidden), *([(rows,)] * 2 if biased else [])]
        names += [d.state.weight(*shape) for shape in shapes * directions]
    start = d.state.weight(layers * directions, v.shape[0 if batch_first else 1], hidden)
    which = pick([0, 1])

    def layer(vs: list[torch.Tensor], m: Any) -> torch.Tensor:
        state = m.weights[start]
        results = getattr(torch, cell)(
            vs[i],
            (state, state * 0.5) if cell == "lstm" else state,
            [m.weights[name] * hidden**-0.5 for name in names],
            biased,
            layers,
            0.0,
            False,
            directions == 2,
            batch_first,
        )
        return cast(torch.Tensor, results[which])

    return Step(cell, (i,), (layers, directions, hidden, biased, batch_first, which), layer)


GATES: Mapping[str, int] = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""The recurrent layers, and how many rows of weights each of their states has."""

FLOATS: Mapping[str, Maker] = {
    "recurrent": _recurrent,
    "linear": _linear,
    "bilinear": _bilinear,
    "product": _product,
    "attention": _attention,
    "heads": _heads,
}
