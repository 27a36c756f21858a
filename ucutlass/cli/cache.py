"""This module is `ucc cache`."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

import click

from ucutlass.cli import show
from ucutlass.cli.errors import Status, reported
from ucutlass.cli.options import json_option
from ucutlass.runtime.cache import Cache, CacheEntry, Corrupt


@click.group("cache")
def command() -> None:
    """List, verify and clear the built kernels of this user.

    The folder and its size limit are set by UCUTLASS_CACHE_DIR and UCUTLASS_CACHE_SIZE.
    """


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Every built kernel, the least recently used first."""
    with reported(as_json):
        entries = Cache.from_switches().entries()
    _print([_row(e) for e in entries], as_json)


@command.command()
@json_option
def stats(as_json: bool) -> None:
    """Counts and bytes."""
    with reported(as_json):
        counts = Cache.from_switches().stats()
    _print([{name: _plain(value) for name, value in asdict(counts).items()}], as_json)


@command.command()
@json_option
def verify(as_json: bool) -> None:
    """Read every file against its digest; corrupt entries are put aside. Exit status 1 where there were."""
    with reported(as_json):
        entries = Cache.from_switches().verify()
    _print([_row(e) for e in entries], as_json)
    if any(isinstance(e, Corrupt) for e in entries):
        sys.exit(Status.PROGRAM)


@command.command()
@json_option
def clear(as_json: bool) -> None:
    """Remove everything that no build is using."""
    with reported(as_json):
        removed = Cache.from_switches().clear()
    _print([{"removed_bytes": removed}], as_json)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value


def _row(item: CacheEntry | Corrupt) -> dict[str, Any]:
    if isinstance(item, Corrupt):
        return {"key": item.key[:16], "state": "corrupt", "reason": item.reason}
    age = time.time() - item.used
    return {
        "key": item.key[:16],
        "state": "ok",
        "entry": str(item.about.get("entry", "")),
        "arch": str(item.about.get("arch", "")),
        "bytes": item.bytes,
        "used": f"{age / 3600:.1f} h ago",
    }


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        show.data(rows)
    elif not rows:
        show.say("the cache is empty")
    else:
        show.table(tuple(rows[0]), [tuple(str(v) for v in row.values()) for row in rows])
