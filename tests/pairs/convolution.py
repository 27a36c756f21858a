"""Programs of convolutions, by features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from tests.pairs.gemm import COMPUTE_TYPES
from tests.pairs.pairs import Choice, Program, Space
from tests.pairs.text import Axis, Stored, kernel
from ucutlass.kernels.convolution.plan import ConvolutionPlan

WINDOWS: Mapping[str, str] = MappingProxyType(
    {
        "padded": "{x} = {p} + {r} - 1",
        "inside": "{x} = {p} + {r}",
        "stride": "{x} = 2*{p} + {r} - 1",
        "dilated": "{x} = {p} + 2*{r} - 2",
        "stride of 3, dilated": "{x} = 3*{p} + 2*{r}",
        "flipped": "{x} = {p} + 1 - {r}",
        "divided": "2*{x} = {p} + 1 - {r}",
        "divided by 3": "3*{x} = {p} + {r}",
    }
)
"""The equation of an axis x of the input with places p and taps r."""

POSITIONS: Mapping[str, str] = MappingProxyType(
    {
        "windows": "",
        "a constant": ", Z = 1",
        "a shift": ", N = N - 1",
        "from the end": ", N = size(N) - 1 - N",
        "a shift of channels": ", C = C + 1",
    }
)
"""What else the input is read at."""

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "chosen": "",
        "cooperative": "warps cooperative",
        "multistage": "warps multistage",
        "multistage, split": "warps multistage  split_k 2",
        "direct": "warps direct",
        "folded": "warps cooperative  fold yes",
        "rows": "warps cooperative  fold rows",
        "groups": "warps cooperative  fold groups",
        "three passes": "math tf32x3",
        "three f16 passes": "math f16x3",
    }
)

FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "none": "v",
        "relu": "relu(v)",
        "gelu": "gelu(v)",
        "rounded": "f16(v) * 0.5 + 1",
        "coordinates": "v + index({n}) % 5 * 0.5",
        "masked": "where(index({p}) > 1, v, -0.5)",
        "compared": "where(v > d * 0.5 + 0.125, v, 0.25)",
    }
)

AXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "kind": ("forward", "grouped", "depthwise", "summed product", "weights"),
        "compute type": ("bf16", "f16", "f16, sums in f16", "tf32", "f32", "e4m3", "s8"),
        "space": ("2", "1", "3"),
        "window": tuple(WINDOWS),
        "position": tuple(POSITIONS),
        "channels": ("16", "1", "3", "4", "8", "33", "64"),
        "input": ("channels last", "channels first", "batch last", "space last", "backwards"),
        "weights": ("taps, channels", "taps first", "channels, taps", "columns last", "backwards"),
        "result": ("channels last", "channels first", "batch last", "backwards"),
        "sides": ("input first", "weights first"),
        "operand": (
            "none",
            "columns",
            "batch",
            "all",
            "all across",
            "place",
            "host",
            "device",
            "shifted",
            "gathered",
        ),
        "operand element": ("f32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "i32", "bool"),
        "function": tuple(FUNCTIONS),
        "element": ("f32", "f16", "bf16", "e4m3", "e5m2", "s8", "i32", "bool"),
        "outcome": ("one", "two", "comparison", "sum of columns", "max of places"),
        "schedule": tuple(SCHEDULES),
    }
)


@dataclass(frozen=True, slots=True)
class _Form:
    """The axes of a convolution by role: `channels` of the input, `columns` of weights and results.
    `rooms` are the input's axes that windows run along, `inner` what else the second operand has, `over` what
    is summed."""

    places: tuple[str, ...]
    taps: tuple[str, ...]
    rooms: tuple[str, ...]
    channels: Axis
    columns: Axis
    inner: tuple[str, ...]
    over: tuple[str, ...]


def program(choice: Choice, draw: Random) -> Program:
    """The program of a choice."""
    form = _form(choice)
    extents = _extents(choice, form, draw)
    elem, around, accumulation = COMPUTE_TYPES[choice["compute type"]]
    parameters = [Stored("x", elem, _input(choice, form)), Stored("w", elem, _weights(choice, form))]
    read = ", ".join(
        WINDOWS[choice["window"] if i == 0 else _second(choice["window"])].format(x=x, p=p, r=r)
        for i, (x, p, r) in enumerate(zip(form.rooms, form.places, form.taps, strict=True))
    )
    read += POSITIONS[choice["position"]]
    names = ", ".join(form.over)
    if choice["kind"] == "summed product":
        sides = _sides(choice, f"x[{read}]", "w")
        dot = f"d = sum[{names}]({sides[0]} * {sides[1]})"
    else:
        sides = _sides(choice, around.format(f"x[{read}]"), around.format("w"))
        dot = f"d = dot[{names}]({', '.join(sides)}{accumulation})"
    result = _result(choice, form)
    bindings = [dot, *_epilogue(choice, form, result, parameters, extents)]
    return kernel(
        parameters, _results(choice, form, result), bindings, extents, SCHEDULES[choice["schedule"]]
    )


def _second(window: str) -> str:
    """The equation of the axes after the first: plain where the first one divides."""
    return "padded" if window.startswith("divided") else window


def _sides(choice: Choice, x: str, w: str) -> tuple[str, str]:
    return (x, w) if choice["sides"] == "input first" else (w, x)


def _form(choice: Choice) -> _Form:
    count = int(choice["space"])
    rooms, places, taps = ("HWU"[:count], "PQV"[:count], "RST"[:count])
    match choice["kind"]:
        case "grouped":
            channels: Axis = ("G", "C")
            columns: Axis = ("G", "K")
            inner, over = ("C",), (*taps, "C")
        case "forward":
            channels, columns, inner, over = "C", "K", ("C",), (*taps, "C")
        case "weights":
            # The second operand is the result's gradient: what is summed are the places.
            channels, columns, inner, over = "C", "K", (), ("N", *places)
        case _:
            channels, columns, inner, over = "C", "C", (), tuple(taps)
    return _Form(tuple(places), tuple(taps), tuple(rooms), channels, columns, inner, over)


# --- orders -------------------------------------------------------------------------


def _ordered(order: str, batch: tuple[str, ...], space: tuple[str, ...], channels: Axis) -> tuple[Axis, ...]:
    match order:
        case "channels first" | "channels, taps":
            return (*batch, channels, *space)
        case "batch last":
            return (channels, *space, *batch)
        case "space last":
            return (channels, *batch, *space[::-1])
        case "backwards":
            return (channels, *space[::-1], *batch)
        case _:
            return (*batch, *space, channels)


def _input(choice: Choice, form: _Form) -> tuple[Axis, ...]:
    axes = _ordered(choice["input"], ("N",), form.rooms, form.channels)
    return (*axes[:1], "Z", *axes[1:]) if choice["position"] == "a constant" else axes


def _weights(choice: Choice, form: _Form) -> tuple[Axis, ...]:
    if choice["kind"] == "weights":
        order = {"taps first": "channels last", "columns last": "batch last"}.get(
            choice["weights"], choice["weights"]
        )
        return _ordered(order, ("N",), form.places, form.columns)
    columns, taps = (form.columns,), form.taps
    match choice["weights"]:
        case "taps first":
            return (*taps, *columns, *form.inner)
        case "channels, taps":
            return (*columns, *form.inner, *taps)
        case "columns last":
            return (*taps, *form.inner, *columns)
        case "backwards":
            return (*form.inner, *taps[::-1], *columns)
        case _:
            return (*columns, *taps, *form.inner)


def _result(choice: Choice, form: _Form) -> tuple[Axis, ...]:
    if choice["kind"] == "weights":
        return _ordered(choice["result"], (form.columns,), form.taps, form.channels)  # type: ignore[arg-type]
    return _ordered(choice["result"], ("N",), form.places, form.columns)


# --- the epilogue -------------------------------------------------------------------


def _epilogue(
    choice: Choice, form: _Form, result: tuple[Axis, ...], parameters: list[Stored], extents: dict[str, int]
) -> list[str]:
    """The bindings, of which the last is `r`; adds the operand to the parameters."""
    kind, elem, read = choice["operand"], choice["operand element"], "p"
    place = form.taps[0] if choice["kind"] == "weights" else form.places[0]
    channel = form.columns if isinstance(form.columns, str) else form.columns[-1]
    batch = "C" if choice["kind"] == "weights" else "N"
    axes: tuple[Axis, ...] | None = {
        "none": None,
        "host": None,
        "device": (),
        "columns": (form.columns,),
        "batch": (batch,),
        "all": result,
        "all across": result[::-1],
        "place": (place,),
        "shifted": (channel,),
        "gathered": ("A", channel),
    }[kind]
    match kind:
        case "shifted":
            read = f"p[{channel} = {channel} - 1]"
        case "gathered":
            parameters.append(Stored("ids", "i32", (batch,)))
            extents["A"], read = 8, "p[A = ids]"
    value = "d * 0.0625" if choice["compute type"] == "s8" else "d"
    if kind != "none":
        parameters.append(Stored("p", elem, axes))
        value = f"where({read}, {value}, -1)" if elem == "bool" else f"{value} + {read} * 0.5"
    return [f"v = {value}", f"r = {FUNCTIONS[choice['function']].format(n=channel, p=place)}"]


def _results(choice: Choice, form: _Form, result: tuple[Axis, ...]) -> list[tuple[Stored, str]]:
    stored = (Stored("y", choice["element"], result), "r > 0" if choice["element"] == "bool" else "r")
    names = [d for axis in result for d in ((axis,) if isinstance(axis, str) else axis)]
    columns = [form.columns] if isinstance(form.columns, str) else list(form.columns)
    places = form.taps if choice["kind"] == "weights" else form.places
    over = {"sum of columns": ("sum", columns), "max of places": ("max", list(places))}.get(choice["outcome"])
    if over is not None:
        op, dims = over
        left = tuple(d for d in names if d not in dims)
        return [stored, (Stored("z", "f32", left), f"{op}[{', '.join(dims)}](f32(r))")]
    match choice["outcome"]:
        case "two":
            return [stored, (Stored("z", "bf16", tuple(names)), "d")]
        case "comparison":
            return [stored, (Stored("z", "bool", result), "r > d * 0.5 + 0.125")]
        case _:
            return [stored]


def _extents(choice: Choice, form: _Form, draw: Random) -> dict[str, int]:
    """Few places, which the emulator takes in seconds."""
    most = {1: (17, 24), 2: (6, 9), 3: (3, 5)}[len(form.rooms)]
    extents = {
        "N": draw.choice((1, 2)),
        "Z": 2,
        "C": int(choice["channels"]),
        "K": draw.choice((1, 7, 16, 33, 64)),
    }
    if choice["kind"] == "grouped":
        extents["G"] = draw.choice((2, 3))
    for x, p, r in zip(form.rooms, form.places, form.taps, strict=True):
        taps = (2, 3) if choice["schedule"] == "rows" else (1, 2, 3)
        extents |= {x: draw.choice(most), p: draw.choice(most), r: draw.choice(taps)}
    return extents


REDUCED = ("sum of columns", "max of places")
OF_F16 = ("rows", "three f16 passes")
TILED = ("cooperative", "multistage", "multistage, split", "folded", "groups", "three passes", *OF_F16)

REFUSED: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {"operand": ("shifted", "gathered")},
    # What the plain threads of `direct` serve alone, and what they have no reductions for.
    {"kind": ("depthwise", "summed product"), "outcome": REDUCED},
    {"kind": ("depthwise", "summed product"), "schedule": TILED},
    {"compute type": ("e4m3", "s8"), "outcome": REDUCED},
    {"compute type": ("e4m3", "s8"), "schedule": TILED},
    {"outcome": REDUCED, "schedule": ("direct",)},
    {"compute type": ("bf16", "f16", "f16, sums in f16", "tf32"), "schedule": ("three passes",)},
    {"compute type": ("f16, sums in f16",), "schedule": ("cooperative", "folded")},
    {"position": ("a constant", "from the end"), "schedule": ("cooperative", "folded", "groups", *OF_F16)},
    {"compute type": ("bf16", "f16", "f16, sums in f16"), "schedule": OF_F16},
    {"compute type": ("tf32",), "schedule": ("three f16 passes",)},
    {"result": ("channels last", "batch last", "backwards"), "schedule": ("rows",)},
    {"position": ("a shift",), "schedule": ("rows",)},
    {"outcome": REDUCED, "schedule": ("rows",)},
    {"window": ("stride of 3, dilated", "divided", "divided by 3"), "schedule": ("rows",)},
    {"kind": ("forward", "weights"), "schedule": ("groups",)},
    {"channels": ("1", "3", "33"), "schedule": ("groups",)},
    {"position": ("a shift of channels",), "schedule": ("groups",)},
    {"compute type": ("f32", "f16, sums in f16"), "schedule": ("groups",)},
    {"kind": ("grouped",), "schedule": ("folded",)},
    {"window": ("flipped", "divided", "divided by 3", "stride of 3, dilated"), "schedule": ("folded",)},
    # A sum of products of integers is an i64, which no convolution is.
    {"kind": ("summed product",), "compute type": ("s8",)},
)

CONVOLUTION = Space(
    "convolution", AXES, program, lambda planned: isinstance(planned.plan, ConvolutionPlan), refused=REFUSED
)
