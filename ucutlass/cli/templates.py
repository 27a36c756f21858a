"""This module begins the template of a session's processes before the command that needs it is imported: both import
torch, which takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ucutlass.runtime.process_template import ProcessTemplate

TEMPLATED = frozenset({"kernelbench", "optimize"})
"""Subcommands whose processes are forks of a template."""

_KEY = "ucutlass.cli.templates"


def begin_template(context: click.Context) -> None:
    """Begins the template of the command that `context` is to run; it ends with the context."""
    from ucutlass.agent import module_processes

    if _KEY not in context.meta:
        context.meta[_KEY] = context.with_resource(module_processes.process_template())


@contextmanager
def session_template() -> Iterator[ProcessTemplate]:
    """Gives the template that was begun for the command that runs, or else one that ends with the block."""
    from ucutlass.agent import module_processes

    begun_template = click.get_current_context().meta.get(_KEY)
    if begun_template is not None:
        yield begun_template
        return
    with module_processes.process_template() as template:
        yield template
