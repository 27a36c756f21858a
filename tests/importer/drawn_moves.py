"""Steps that move elements: views, slices, indices, concatenations, writes into parts, padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from tests.importer.drawn_modules import Apply, Draft, Maker, Pick, Step, chosen


def factors(n: int, pick: Pick) -> list[int]:
    """Returns a random factorisation of n."""
    shape: list[int] = []
    while n > 1 and len(shape) < 4:
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        d = pick(divisors)
        shape.append(d)
        n //= d
    return [*shape, n] if n > 1 or not shape else shape


def _view(d: Draft, i: int) -> Step:
    v, pick = d.values[i], d.pick
    shape = factors(v.numel(), pick)
    order = list(range(v.dim()))
    for k in range(len(order) - 1):
        j = pick(range(k, len(order)))
        order[k], order[j] = order[j], order[k]
    count = pick([2, 3])
    table: dict[str, Apply] = {
        "reshape": lambda t: t.reshape(shape),
        "permute": lambda t: t.permute(order),
        "flatten": torch.flatten,
        "expand": lambda t: t.unsqueeze(0).expand(count, *t.shape),
        "contiguous": lambda t: t.permute(order).contiguous().reshape(shape),
        "squeeze all": torch.squeeze,
    }
    return chosen(d, i, table, shape, order, count)


def _along(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if not v.dim():
        return None
    axis = pick(range(v.dim()))
    n = v.shape[axis]
    shift = pick(range(-n, n + 1))
    start = pick(range(n))
    stop = pick(range(start + 1, n + 1))
    step = pick([1, 1, 2, 3])
    place, count = pick(range(-n, n)), pick([2, 3])
    ids = [pick(range(n)) for _ in range(pick([1, 2, 4]))]
    size, by = pick([s for s in (1, 2, 3) if s <= n]), pick([1, 2])
    at = pick(range(v.dim() + 1))

    def sliced(t: torch.Tensor) -> torch.Tensor:
        return t[(*(slice(None) for _ in range(axis)), slice(start, stop, step))]

    table: dict[str, Apply] = {
        "flip": lambda t: t.flip(axis),
        "flip all": lambda t: t.flip(tuple(range(t.dim()))),
        "roll": lambda t: t.roll(shift, axis),
        "roll flat": lambda t: t.roll(shift),
        "slice": sliced,
        "select": lambda t: t.select(axis, place),
        "repeat_interleave": lambda t: t.repeat_interleave(count, axis),
        "repeat": lambda t: t.repeat(*(count if k == axis else 1 for k in range(t.dim()))),
        "repeat more": lambda t: t.repeat(count, *(1 for _ in t.shape)),
        "index_select": lambda t: t.index_select(axis, torch.tensor(ids)),
        "index": lambda t: t.movedim(axis, 0)[torch.tensor(ids)],
        "index of negatives": lambda t: t.movedim(axis, 0)[torch.tensor(ids) - n],
        "unsqueeze": lambda t: t.unsqueeze(at),
        "squeeze": lambda t: t.squeeze(axis),
        "chunk": lambda t: t.chunk(2, axis)[-1],
        "split": lambda t: t.split([1, n - 1], axis)[n > 1],
        "unbind": lambda t: t.unbind(axis)[place],
        "tensor_split": lambda t: t.tensor_split(2, axis)[0] if n > 1 else t,
        "narrow": lambda t: t.narrow(axis, start, stop - start),
        "unfold": lambda t: t.unfold(axis, size, by),
        "take_along": lambda t: t.gather(axis, torch.zeros_like(t, dtype=torch.int64)),
        "transpose": lambda t: t.transpose(axis, -1),
        "movedim": lambda t: t.movedim(axis, 0),
        "swap halves": lambda t: torch.cat(
            [t.narrow(axis, start, n - start), t.narrow(axis, 0, start + 1)], axis
        ),
        "rot90": lambda t: torch.rot90(t, 1, (0, t.dim() - 1)) if t.dim() > 1 else t.flip(0),
    }
    return chosen(d, i, table, axis, shift, (start, stop, step), place, count, ids, (size, by), at)


def _matrix_parts(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if v.dim() < 2:
        return None
    offset = pick([0, 1, -1])
    table: dict[str, Apply] = {
        "tril": lambda t: t.tril(offset),
        "triu": lambda t: t.triu(offset),
        "diag_embed": torch.diag_embed,
        "pixel_shuffle": lambda t: F.pixel_shuffle(t, 2) if t.dim() >= 3 and t.shape[-3] % 4 == 0 else t * 2,
        "pixel_unshuffle": lambda t: (
            F.pixel_unshuffle(t, 2) if t.dim() >= 3 and t.shape[-1] % 2 == t.shape[-2] % 2 == 0 else t * 2
        ),
        "trace": lambda t: t.diagonal(0, -2, -1).sum(-1),
    }
    if -v.shape[-2] < offset < v.shape[-1]:
        table["diagonal"] = lambda t: t.diagonal(offset, -2, -1)
    return chosen(d, i, table, offset)


def _joined(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    j = pick(d.others(lambda o: o.shape == v.shape and o.dtype is v.dtype))
    if not v.dim():
        return Step("stack", (i, j), (), lambda vs, m: torch.stack([vs[i], vs[j]]))
    axis = pick(range(v.dim()))
    fits = d.others(
        lambda o: (
            o.dim() == v.dim()
            and o.dtype is v.dtype
            and all(k == axis or m == n for k, (m, n) in enumerate(zip(o.shape, v.shape, strict=True)))
        )
    )
    k = pick(fits)
    table: dict[str, tuple[tuple[int, ...], Callable[[list[torch.Tensor]], torch.Tensor]]] = {
        "cat": ((i, k), lambda vs: torch.cat([vs[i], vs[k]], axis)),
        "cat of three": ((i, k, i), lambda vs: torch.cat([vs[i], vs[k], vs[i]], axis)),
        "stack": ((i, j), lambda vs: torch.stack([vs[i], vs[j]], axis)),
        "hstack": ((i, j), lambda vs: torch.hstack([vs[i], vs[j]])),
    }
    name = pick(sorted(table))
    reads, apply = table[name]
    return Step(name, reads, (axis,), lambda vs, m: apply(vs))


def _padded(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if v.dim() < 2 or v.dim() > 4:
        return None
    n = v.shape[-1]
    before, after = pick([0, 1, 2]), pick([0, 1])
    value = pick([0.0, 1.5, float("-inf")])
    every = [before, after] * pick(range(1, v.dim() + 1))
    table: dict[str, Apply] = {
        "pad constant": lambda t: F.pad(t, every, value=value),
        "pad replicate": lambda t: F.pad(t, [before, after], mode="replicate"),
    }
    if max(before, after) <= n:
        table["pad circular"] = lambda t: F.pad(t, [before, after], mode="circular")
    if max(before, after) < n:
        table["pad reflect"] = lambda t: F.pad(t, [before, after], mode="reflect")
        table["pad away"] = lambda t: F.pad(t, [-before, after])
    return chosen(d, i, table, before, after, value, every)


def _pad_matrix(d: Draft, i: int) -> Step | None:
    v = d.values[i]
    if v.dim() not in (3, 4) or min(v.shape[-2:]) < 2:
        return None
    table: dict[str, Apply] = {
        "pad replicate of two axes": lambda t: F.pad(t, [1, 0, 0, 1], mode="replicate"),
        "pad reflect of two axes": lambda t: F.pad(t, [1, 1, 0, 1], mode="reflect"),
        "pad circular of two axes": lambda t: F.pad(t, [1, 0, 2, 1], mode="circular"),
    }
    return chosen(d, i, table)


def _written(d: Draft, i: int) -> Step | None:
    """A copy that is written in part, in place."""
    v, pick = d.values[i], d.pick
    if not v.dim():
        return None
    n = v.shape[0]
    low = pick(range(n))
    high = pick(range(low + 1, n + 1))
    j = pick(
        d.others(lambda o: o.dtype is v.dtype and o.dim() <= v.dim() and d.broadcasts(v, o) and _within(o, v))
    )

    def filled(t: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        new = t.clone()
        new[low:high] = 2
        return new

    def row(t: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        new = t.clone()
        new[low] = o.expand(t.shape)[low] if o.dim() == t.dim() else o.expand(t.shape)[0]
        return new

    def part(t: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        new = t.clone()
        new[low:high] += o.expand(t.shape)[low:high]
        return new

    def strided(t: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        new = t.clone()
        new[..., ::2] = o.expand(t.shape)[..., ::2]
        return new

    def whole(t: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        return t.clone().mul_(2).add_(o)

    def through_view(t: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        new = t.clone()
        new.view(-1)[: t.numel() // 2 + 1].mul_(2)
        return new

    def masked(t: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        new = t.clone()
        new[new > 0] = 3
        return new

    def copied(t: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(t).copy_(o)

    table = {
        "fill of a slice": filled,
        "copy into a row": row,
        "add into a slice": part,
        "copy into every second": strided,
        "in place": whole,
        "in place through a view": through_view,
        "fill by a mask": masked,
        "copy": copied,
    }
    name = pick(sorted(table))
    return Step(name, (i, j), (low, high), lambda vs, m: table[name](vs[i], vs[j]))


def _within(other: torch.Tensor, v: torch.Tensor) -> bool:
    return torch.broadcast_shapes(other.shape, v.shape) == v.shape


def _buffer(d: Draft, i: int) -> Step | None:
    """A buffer that is read and then written."""
    v = d.values[i]
    name = d.state.buffer(*v.shape)

    def averaged(vs: list[torch.Tensor], m: Any) -> torch.Tensor:
        buffer: torch.Tensor = getattr(m, name)
        result = vs[i] + buffer
        buffer.mul_(0.75).add_(vs[i], alpha=0.25)
        return result

    def replaced(vs: list[torch.Tensor], m: Any) -> torch.Tensor:
        buffer: torch.Tensor = getattr(m, name)
        buffer.copy_(vs[i] * 2)
        return buffer - 1

    def rolled(vs: list[torch.Tensor], m: Any) -> torch.Tensor:
        buffer: torch.Tensor = getattr(m, name)
        if v.dim():
            buffer[0] = vs[i][0] + buffer[-1]
        return buffer * vs[i]

    table = {"buffer average": averaged, "buffer copy": replaced, "buffer row": rolled}
    words = d.pick(sorted(table))
    return Step(words, (i,), (name,), table[words])


def _looked_up(d: Draft, i: int) -> Step | None:
    """Whole numbers as positions in another value or in a table of weights."""
    v, pick = d.values[i], d.pick
    if v.dtype is torch.bool or v.numel() > 60:
        return None
    width = pick([1, 3])
    w = d.state.weight(4, width)
    floats = d.others(lambda o: o.is_floating_point() and o.dim() >= 1)
    j = pick(floats) if floats else None
    if j is not None and pick([True, False]):
        n = d.values[j].shape[0]
        gathered = {
            "index by a value": lambda vs: vs[j][vs[i].long() % n],
            "take": lambda vs: torch.take(vs[j], vs[i].long() % vs[j].numel()),
        }
        name = pick(sorted(gathered))
        return Step(name, (i, j), (), lambda vs, m: gathered[name](vs))
    return Step("embedding", (i,), (width,), lambda vs, m: F.embedding(vs[i].long() % 4, m.weights[w]))


def _gather(d: Draft, i: int) -> Step | None:
    """Positions along an axis of a value, from a value of whole numbers or from another's order."""
    v, pick = d.values[i], d.pick
    if not v.dim():
        return None
    axis = pick(range(v.dim()))
    n = v.shape[axis]
    ids = d.others(lambda o: o.dtype is torch.int64 and o.dim() == v.dim() and o.shape == v.shape)
    j = pick(ids) if ids else None
    count = pick([1, 2, 3])
    shape = [count if k == axis else max(1, m - pick([0, 0, 1])) for k, m in enumerate(v.shape)]
    positions = torch.arange(torch.Size(shape).numel()).reshape(shape) * 7 % n
    table: dict[str, Apply] = {"gather constants": lambda t: torch.gather(t, axis, positions)}
    if j is not None and pick([True, False]):
        return Step("gather", (i, j), (axis,), lambda vs, m: torch.gather(vs[i], axis, vs[j] % n))
    rows, columns = torch.tensor([0, v.shape[0] - 1]), torch.tensor([0, v.shape[-1] - 1])
    if v.dim() >= 2:
        table["index of two axes"] = lambda t: t[rows, ..., columns]
        table["index of two adjacent axes"] = lambda t: t[..., columns[:, None] % t.shape[-2], columns]
    return chosen(d, i, table, axis, shape)


def _torch_function(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if not v.dim():
        return None
    axis = pick(range(v.dim()))
    n = v.shape[axis]
    count = pick(range(1, n + 1))
    ids = torch.arange(n) * 2 % n
    table: dict[str, Apply] = {
        "sort": lambda t: t.sort(dim=axis, descending=True, stable=True)[0],
        "topk": lambda t: t.topk(count, axis)[0],
        "smallest": lambda t: t.topk(count, axis, largest=False)[0],
        "median": lambda t: t.sort(axis)[0].select(axis, (n - 1) // 2),
        "scatter": lambda t: torch.zeros_like(t).scatter(axis, torch.zeros_like(t, dtype=torch.int64), 1.5),
        "index_add": lambda t: torch.zeros_like(t).index_add(axis, ids, t),
        "index_put": lambda t: torch.index_put(t, (torch.tensor([0]),), t[-1:] * 2),
        "index_copy": lambda t: torch.index_copy(t, 0, torch.tensor([0]), t[-1:] * 2),
        "scatter_add": lambda t: torch.zeros_like(t).scatter_add(
            axis, torch.zeros_like(t, dtype=torch.int64), t
        ),
    }
    return chosen(d, i, table, axis, count)


FLOATS: Mapping[str, Maker] = {
    "view": _view,
    "view again": _view,
    "along": _along,
    "along again": _along,
    "matrix parts": _matrix_parts,
    "joined": _joined,
    "padded": _padded,
    "pad matrix": _pad_matrix,
    "written": _written,
    "buffer": _buffer,
    "gather": _gather,
    "torch function": _torch_function,
}
OTHERS: Mapping[str, Maker] = {"view": _view, "along": _along, "joined": _joined, "looked up": _looked_up}
