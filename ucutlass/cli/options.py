"""This module has the arguments and options that several commands share."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

import click

from ucutlass.cli import inputs
from ucutlass.ir.hardware import ARCHES
from ucutlass.runtime.switches import FORMER_BUILD_PATHS, REMOVED_BUILD_PATHS, BuildPath


class WholeNumber(click.IntRange):
    """Takes a whole number in the digits 0 to 9: no underscore, no other script, as in `-s M=4096`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not re.fullmatch(r"-?[0-9]{1,40}", value):
            self.fail(f"{value!r} is no whole number in the digits 0 to 9.", param, ctx)
        return super().convert(value, param, ctx)


class RenamedOption(click.Option):
    """Shows its first spelling alone; the others are old ones, which are still taken."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        spellings, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = spellings

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return f"'{self.opts[0]}'"


class PositiveNumber(click.FloatRange):
    """Takes a number above 0 that is finite, such as 2.5 or 1e3: NaN passes every comparison of a range,
    infinity the open ones."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not re.fullmatch(r"[0-9.+-]+([eE][+-]?[0-9]+)?", value):
            self.fail(f"{value!r} is no finite number in the digits 0 to 9.", param, ctx)
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

Option: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What `click.option` gives."""


def grouped(
    keyword: str, factory: Callable[[Mapping[str, Any]], object], *options: Option
) -> Callable[[F], F]:
    """Adds options to a command, which is given what `factory` makes of them, by this keyword, in their place.
    `factory` is given their values by their names in Python."""

    def add(command: F) -> F:
        names: list[str] = []

        @functools.wraps(command)
        def called(*arguments: Any, **values: Any) -> Any:
            value = factory({name: values.pop(name) for name in names})
            return command(*arguments, **{keyword: value}, **values)

        decorated: Any = called
        # click keeps the parameters of a function that is no command yet in a list of it, the last first.
        own_count = len(getattr(decorated, "__click_params__", ()))
        for option in reversed(options):
            decorated = option(decorated)
        names += [parameter.name for parameter in decorated.__click_params__[own_count:]]
        result: F = decorated
        return result

    return add


def part(cls: Callable[..., T], values: Mapping[str, Any]) -> T:
    """Returns a dataclass from the options that are named like its fields."""
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    return cls(**{name: values[name] for name in names if name in values})


file_argument = click.argument("file", type=inputs.existing())

sizes_option = click.option(
    "-s",
    "--sizes",
    multiple=True,
    metavar="M=4096,N=..",
    help="Extents of the free dimensions, as M=4096,N=4096,K=64; may be repeated.",
)

kernel_option = click.option(
    "-k", "--kernel", "name", metavar="NAME", help="Which kernel, where the file has several."
)

json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")

journal_option = click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The sessions' journal, where it is not this user's own.",
)


def names_in(words: str) -> tuple[str, ...]:
    """Returns names that stand with commas between them."""
    return tuple(name.strip() for name in words.split(",") if name.strip())


def seconds_option(flag: str, default: float, words: str) -> Callable[[F], F]:
    """Returns a time limit."""
    return click.option(flag, type=PositiveNumber(), default=default, show_default=True, help=words)


def arch_option(default: str | None = "sm90a") -> Callable[[F], F]:
    """Returns `--arch`; without a default the command looks at the GPU."""
    return click.option(
        "--arch",
        type=click.Choice(tuple(ARCHES)),
        default=default,
        show_default=default is not None,
        help="Compile target."
        if default
        else "Compile target; by default the one of the GPU at hand, else sm90a.",
    )


class _FirstNameShown(click.Option):
    """An option whose further names are read, since scripts hold them, but are not shown in the help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names = self.opts
        self.opts = names[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


class _BuildPathChoice(click.Choice[str]):
    """The build paths. Their former names are read as well."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in REMOVED_BUILD_PATHS:
            self.fail(f"{value!r}: {REMOVED_BUILD_PATHS[value]}", param, ctx)
        return super().convert(FORMER_BUILD_PATHS.get(value, value), param, ctx)


build_path_option = click.option(
    "--build-path",
    "--stage",
    "build_path",
    cls=_FirstNameShown,
    type=_BuildPathChoice(get_args(BuildPath)),
    help="How to build: nvrtc compiles in seconds and links a new epilogue into a compiled skeleton in one; "
    "nvcc compiles one file; auto, the default, takes nvrtc where it serves the kernel, else nvcc.",
)
