"""Arguments and options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ucutlass.hardware import ARCHES


class Positive(click.FloatRange):
    """A number above 0 that is finite: NaN passes every comparison of a range, infinity the open ones."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no finite number", param, ctx)
        return found


F = TypeVar("F", bound=Callable[..., Any])

file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))

sizes_option = click.option(
    "-s", "--sizes", multiple=True, metavar="M=4096,N=..",
    help="Extents of the free dimensions, as M=4096,N=4096,K=64; may be repeated.",
)

kernel_option = click.option(
    "-k", "--kernel", "name", metavar="NAME", help="Which kernel, where the file has several."
)

json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")

def module_options(command: F) -> F:
    """How a PyTorch module is taken as a problem."""
    for option in (
        click.option("--start", type=click.Path(exists=True, path_type=Path), metavar="FILE.ucu",
                     help="A module's first program, or a folder of them by the modules' paths."),
        click.option("--mode", type=click.Choice(("constructed", "train", "eval")), default="constructed",
                     show_default=True, help="The mode in which a module runs."),
        click.option("--precision", type=click.Choice(("own", "f32", "f16", "bf16")), default="own",
                     show_default=True, help="What a module's floating tensors are cast to."),
    ):  # fmt: skip
        command = option(command)
    return command


journal_option = click.option(
    "--journal", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="The sessions' journal, where it is not this user's own.",
)  # fmt: skip


def seconds_option(flag: str, default: float, words: str) -> Callable[[F], F]:
    """A time limit."""
    return click.option(flag, type=Positive(), default=default, show_default=True, help=words)


def arch_option(default: str | None = "sm90a") -> Callable[[F], F]:
    """`--arch`; without a default the command looks at the GPU."""
    return click.option(
        "--arch",
        type=click.Choice(tuple(ARCHES)),
        default=default,
        show_default=default is not None,
        help="Compile target."
        if default
        else "Compile target; by default the one of the GPU at hand, else sm90a.",
    )
