"""This module records a model's traffic: replies by the digest of their requests, in a file of JSON lines.

A replay is the same proposer over the same requests, so it answers bit for bit what was answered, without a
key or a network. A request that was not recorded, because a prompt, a tool's words or a setting differ, is an
error: nothing is answered that was not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.proposers.service import (
    MessageService,
    ModelReply,
    OnUsage,
    Request,
    TokenUsage,
    reply_of_json,
    reply_to_json,
)

VERSION = 1


def digest(request: Request) -> str:
    """Returns the digest of the request as JSON, whatever the order of its keys."""
    return hashlib.sha256(_canonical(request).encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


class NotTraffic(ValueError):
    """Raised for a file that holds no recorded traffic."""


@dataclass(frozen=True, slots=True)
class RecordingService:
    """Writes a service's replies down before they are given. A line that a kill cut off is taken away by the
    next one: its reply was never given."""

    service: MessageService
    path: Path

    def send(self, request: Request, on_usage: OnUsage) -> ModelReply:
        """Raises OSError where the file cannot be written."""
        usages: list[tuple[str, TokenUsage]] = []

        def on_model_usage(model: str, usage: TokenUsage) -> None:
            usages.append((model, usage))
            on_usage(model, usage)

        reply = self.service.send(request, on_model_usage)
        row = {
            "version": VERSION,
            "digest": digest(request),
            "request": dict(request),
            "reply": reply_to_json(reply),
            "told": [[m, asdict(u)] for m, u in usages],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as out:
            out.truncate(_complete_bytes(self.path))
            out.write(_canonical(row).encode() + b"\n")
            out.flush()
            os.fsync(out.fileno())
        return reply


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """Describes a reply, and what was told of usage while it came: sums of dollars depend on the steps."""

    reply: ModelReply
    usages: tuple[tuple[str, TokenUsage], ...]


@dataclass(frozen=True, slots=True)
class ReplayingService:
    """Is a service that knows only what was recorded. Of a request that was recorded twice (its first answer
    was lost with its process) the last reply holds."""

    path: Path
    replies: Mapping[str, RecordedReply] = field(repr=False)

    @staticmethod
    def open(path: Path) -> ReplayingService:
        """Raises NotTraffic, OSError."""
        replies: dict[str, RecordedReply] = {}
        lines = path.read_bytes()[: _complete_bytes(path)].splitlines()
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if row["version"] != VERSION or row["digest"] != digest(row["request"]):
                    raise ValueError("its digest is not that of its request")
                usages = tuple((str(model), TokenUsage(**usage)) for model, usage in row["told"])
                replies[row["digest"]] = RecordedReply(reply_of_json(row["reply"]), usages)
            except (ValueError, KeyError, TypeError) as problem:
                raise NotTraffic(f"{path}:{number} is no recorded request: {problem!r}") from problem
        return ReplayingService(path, replies)

    def send(self, request: Request, on_usage: OnUsage) -> ModelReply:
        key = digest(request)
        recorded = self.replies.get(key)
        if recorded is None:
            raise ProposerFailed(
                f"{self.path} has no reply to request {key[:12]}: it was not recorded",
                "replay the session with the problem, settings and version that it was recorded with",
            )
        for model, usage in recorded.usages:
            on_usage(model, usage)
        return recorded.reply


def _complete_bytes(path: Path) -> int:
    """Returns bytes of whole lines; behind them is what was being written when its process died."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return 0
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return size
        file.seek(0)
        return file.read().rfind(b"\n") + 1
