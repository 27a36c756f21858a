"""This module is `ucc doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import json_option
from ucutlass.runtime.doctor import examine


@click.command("doctor")
@click.option(
    "--api", is_flag=True, help="Ask a model for one word instead, and say what is wrong with key or network."
)
@click.option("--model", metavar="NAME", help="The model that --api asks; by default that of ucc optimize.")
@json_option
def command(api: bool, model: str | None, as_json: bool) -> None:
    """Report what this machine has for building and running kernels, and what fixes the rest.

    Exit status 3 where something that building needs is missing. With --api: 2 where the model is not known, 3
    where the key, the network, the account or the service is at fault; the key is not printed.
    """
    with reported(as_json):
        if api:
            _check_api(model, as_json)
            return
        if model is not None:
            fail(Status.CALL, "--model is for --api", as_json)
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


def _check_api(model: str | None, as_json: bool) -> None:
    from ucutlass.agent.api_check import check_api
    from ucutlass.agent.proposers.conversation import DEFAULT_MODEL

    report = check_api(model or DEFAULT_MODEL)
    if as_json:
        show.data(asdict(report))
    elif report.fault:
        show.note(f"ucc: the {report.fault}: {report.words}; to fix it: {report.fix}")
    else:
        paid = "" if report.dollars is None else f", ${report.dollars:.6f}"
        show.say(
            f"{report.model} answers at {report.host}: {report.seconds:.1f} s, {report.tokens} tokens{paid}"
        )
    if report.fault:
        sys.exit(Status.CALL if report.fault == "model" else Status.MACHINE)
