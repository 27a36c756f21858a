"""This module is `ucc guide`."""

from __future__ import annotations

import click

from ucutlass.cli import show
from ucutlass.guide import guide


@click.command("guide")
def command() -> None:
    """Print the whole language in two pages, for a person or for an LLM's context."""
    show.program(guide())
