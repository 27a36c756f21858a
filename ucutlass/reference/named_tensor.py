"""Tensors whose axes have names, which are the interpreter's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ucutlass.ir import Dims, MemoryAxis, TensorType, extents
from ucutlass.reference.binding import shape_of
from ucutlass.reference.packing import unpacked
from ucutlass.reference.rounding import inner_dtype


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A tensor with named axes: `data.shape[i]` is the extent of `dims[i]`. Data is float64, int64 or
    bool."""

    data: Tensor
    dims: Dims

    def spread(self, dims: Sequence[str]) -> Tensor:
        """Returns a view with one axis per name of `dims`, in that order, of extent 1 for names that the
        value lacks."""
        present = [d for d in dims if d in self.dims]
        view = self.data.permute([self.dims.index(d) for d in present])
        for i, d in enumerate(dims):
            if d not in self.dims:
                view = view.unsqueeze(i)
        return view

    def like(self, data: Tensor) -> Named:
        """Returns other data over the same names."""
        return Named(data, self.dims)


def from_memory(tensor: Tensor, kind: TensorType, sizes: Mapping[str, int]) -> Named:
    """Returns a parameter as a value: composite axes are split, nameless axes of extent 1 are dropped.

    Other nameless axes (the E+1 of segment offsets) get a name that no program can write.
    """
    names: list[str] = []
    shape: list[int] = []
    tensor = unpacked(tensor, kind.elem)
    for i, (axis, length) in enumerate(zip(kind.axes, tensor.shape, strict=True)):
        if axis.dims:
            names += axis.dims
            shape += [sizes[d] for d in axis.dims]
        elif length != 1 or not _is_one(axis, sizes):
            names.append(f"#{i}")
            shape.append(length)
    return Named(tensor.to(inner_dtype(kind.elem)).reshape(shape), tuple(names))


def to_memory(value: Named, kind: TensorType, sizes: Mapping[str, int]) -> Tensor:
    """Returns a value laid out as a result type says; dimensions that it lacks are repeated."""
    wide = value.spread(kind.dims).expand([sizes[d] for d in kind.dims])
    return wide.reshape(shape_of(kind, sizes)).contiguous()


def _is_one(axis: MemoryAxis, sizes: Mapping[str, int]) -> bool:
    return extents.evaluate(axis.extent, sizes) == 1 and not extents.names(axis.extent)


def coordinates(extent: int, device: torch.device) -> Tensor:
    return torch.arange(extent, dtype=torch.int64, device=device)
