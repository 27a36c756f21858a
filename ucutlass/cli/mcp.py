"""This module is `ucc mcp`."""

from __future__ import annotations

from pathlib import Path

import click

from ucutlass.cli.errors import Status, fail
from ucutlass.cli.options import PositiveNumber, WholeNumber, seconds_option

_MISSING = (
    "ucc mcp needs the official SDK of the Model Context Protocol, which is not installed: "
    "pip install 'ucutlass[mcp]'"
)


@click.command("mcp")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    show_default="the folder where it is started",
    help="The folder below which a client may name files; no symbolic link is followed.",
)
@seconds_option("--seconds", 900.0, "Most seconds of one job.")
@seconds_option("--total-seconds", 14_400.0, "Most seconds of all jobs together.")
@click.option(
    "--attempts", type=WholeNumber(1), default=40, show_default=True, help="Most candidates of one search."
)
@click.option("--jobs", type=WholeNumber(1, 64), default=1, show_default=True, help="Jobs that run at once.")
@click.option("--queue", type=WholeNumber(0, 1000), default=8, show_default=True, help="Jobs that may wait.")
@click.option(
    "--memory", type=PositiveNumber(), default=16.0, show_default=True, help="Most GiB of one command."
)
@click.option("--model", metavar="NAME", help="Let searches ask this model, with --dollars; else none does.")
@click.option("--dollars", type=PositiveNumber(), help="Most money that all searches together spend.")
def command(
    root: Path,
    seconds: float,
    total_seconds: float,
    attempts: int,
    jobs: int,
    queue: int,
    memory: float,
    model: str | None,
    dollars: float | None,
) -> None:
    """Serve these commands to a coding agent, by the Model Context Protocol on standard input and output.

    The tools are check, explain, sol, edit, emit, measure, optimize, job and search. Each answers within 45
    seconds, or with a job to poll. What a client asks beyond the limits of these options is refused. The server,
    and all that it started, ends with its client.
    """
    if (model is None) != (dollars is None):
        fail(Status.CALL, "--model and --dollars go together", False)
    try:
        from ucutlass.agent.mcp.limits import ServerLimits
        from ucutlass.agent.mcp.server import serve
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in (
            "mcp",
            "mcp_types",
            "anyio",
            "pydantic",
        ):
            raise
        fail(Status.MACHINE, _MISSING, False)
    memory_bytes = int(memory * (1 << 30))
    serve(
        ServerLimits(
            root.absolute(), seconds, total_seconds, attempts, jobs, queue, memory_bytes, model, dollars
        )
    )
