"""Programs as commands read them: checked, their warnings on stderr."""

from __future__ import annotations

from pathlib import Path

import click

from ucutlass import frontend
from ucutlass.diagnostics import render


def read(path: Path) -> frontend.Checked:
    """Reads and checks a file, and shows its warnings once. Raises as `frontend.read`."""
    checked = frontend.read(path)
    if checked.warnings:
        click.echo(render(checked.warnings, checked.source, checked.file), err=True)
    return checked
