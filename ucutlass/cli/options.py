"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ucutlass.hardware import ARCHES

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
