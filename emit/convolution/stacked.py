"""A copy of weights whose columns are the remainders of divided windows too, as `convolution/im2col_stacked.j2` makes it."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.convolution import operands as convolution
from ucutlass.kernels.convolution.plan import ConvolutionProblem
from ucutlass.kernels.convolution.plan_im2col import Im2col


@dataclass(frozen=True, slots=True)
class DigitText:
    """A digit of a place in the copy: its extent as C++, the axis of the tensor along which it moves, and how far."""

    extent: str
    axis: int
    weight: int


@dataclass(frozen=True, slots=True)
class SourceAxisText:
    """An axis of the tensor as C++: where the copy begins on it, and its extent."""

    begin: str
    extent: str


@dataclass(frozen=True, slots=True)
class StackText:
    """The copy: the tensor's pointer, digits innermost first, the tensor's axes as declared, and the copy's elements."""

    pointer: int
    digits: tuple[DigitText, ...]
    axes: tuple[SourceAxisText, ...]
    elements: str


@dataclass(frozen=True, slots=True)
class AloneAxisText:
    """An axis of A as it lies: its extent, and where a result reads it, as C++; "" where that is a window or a channel."""

    extent: str
    at: str


@dataclass(frozen=True, slots=True)
class AloneColumnText:
    """An axis of B that is a part of the columns."""

    axis: int
    extent: str


@dataclass(frozen=True, slots=True)
class AloneWindowText:
    """A window of A: its number, its axes of both tensors (-1: no tap), coefficients, and the rest as C++ in the kernel."""

    number: int
    axis_a: int
    axis_b: int
    step: int
    tap: int
    scale: int
    taps: str
    extent: str
    offset: str


@dataclass(frozen=True, slots=True)
class AloneText:
    """How one result is summed from the tensors as they lie."""

    pointer_a: int
    pointer_b: int
    a: tuple[AloneAxisText, ...]
    b: tuple[str, ...]
    b_columns: tuple[AloneColumnText, ...]
    windows: tuple[AloneWindowText, ...]
    channel_a: int
    channel_b: int
    channels: str


def alone(problem: ConvolutionProblem, how: Im2col) -> AloneText | None:
    """Returns how a result is summed alone, or None where no weights are stacked."""
    a, b = problem.a, problem.b
    if not b.stack:
        return None
    batch = {run[0]: f"batch[{i}]" for i, run in enumerate(problem.batch)}
    spaces = {s.axis: i for i, s in enumerate(how.space)}
    axes = []
    for i, axis in enumerate(a.axes):
        plain = axis.window is None and i != how.channel and i not in spaces
        at = ("image" if axis.extent in problem.m else batch[axis.extent]) if plain else ""
        axes.append(AloneAxisText(f"e[{axis.extent}]", at))
    windows = []
    for number, space in enumerate(how.space):
        read = a.axes[space.axis]
        terms = dict(read.window.terms) if read.window is not None else {read.extent: 1}
        tap = space.tap_dim
        axis_b = -1 if tap is None else next(i for i, x in enumerate(b.axes) if x.extent == tap)
        windows.append(
            AloneWindowText(
                number,
                space.axis,
                axis_b,
                terms[space.result],
                0 if tap is None else terms[tap],
                1 if read.window is None else read.window.scale,
                "1" if tap is None else f"p.e[{tap}]",
                f"p.e[{read.extent}]",
                "0" if read.window is None else convolution.spelled(read.window.offset),
            )
        )
    return AloneText(
        a.pointer,
        b.pointer,
        tuple(axes),
        tuple(f"e[{x.extent}]" for x in b.axes),
        tuple(AloneColumnText(i, f"p.e[{b.axes[i].extent}]") for i in how.columns),
        tuple(windows),
        how.channel,
        how.channel_b,
        f"p.e[{a.axes[how.channel].extent}]",
    )


def stacked_weights(problem: ConvolutionProblem, how: Im2col) -> StackText | None:
    """Returns the copy that stands before the one in parts, or None where the weights have no such columns."""
    b = problem.b
    if not b.stack:
        return None
    lies = convolution.layout(b)
    by_axis = {s.axis: s for s in b.stack}
    digits = [DigitText(lies[0].extent, how.channel_b, 1)]
    digits += [DigitText(str(s.scale), s.axis, -s.tap) for s in b.stack]
    digits += [DigitText(f"e[{b.axes[i].extent}]", i, 1) for i in how.columns]
    for axis in lies[1:]:
        if axis.axis in how.columns:
            continue
        stack = by_axis.get(axis.axis)
        digits.append(DigitText(axis.extent, axis.axis, 1 if stack is None else stack.tap * stack.scale))
    axes = []
    for i, axis_ in enumerate(b.axes):
        stack = by_axis.get(i)
        begin = "0"
        if stack is not None:
            first, offset = convolution.spelled(stack.first), convolution.spelled(stack.offset)
            begin = f"{stack.tap} * ({stack.scale} * ({first}) - ({offset}))"
        axes.append(SourceAxisText(begin, f"e[{axis_.extent}]"))
    return StackText(b.pointer, tuple(digits), tuple(axes), " * ".join(f"({a.extent})" for a in lies))
