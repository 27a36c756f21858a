"""This module is `ucc doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from ucutlass.cli import show
from ucutlass.cli.errors import Status, reported
from ucutlass.cli.options import json_option
from ucutlass.runtime.doctor import examine


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Report what this machine has for building and running kernels, and what fixes the rest.

    Exit status 3 where something that building needs is missing.
    """
    with reported(as_json):
        report = examine()
    if as_json:
        show.data(asdict(report) | {"can_build": report.can_build, "can_run": report.can_run})
    else:
        marks = {"found": "ok", "missing": "missing", "broken": "broken"}
        show.table(
            ("", "", ""),
            [
                (marks[f.state], f.what, f.detail + (f"; to fix it: {f.fix}" if f.fix else ""))
                for f in report.findings
            ],
        )
        show.say(
            f"kernels can be built: {'yes' if report.can_build else 'no'}; run: "
            f"{'yes' if report.can_run else 'no, the interpreter serves'}"
        )
    if not report.can_build:
        sys.exit(Status.MACHINE)
