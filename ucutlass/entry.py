"""The process of the `ucc` command: its signals, its streams, its exit status."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Signals:
    """SIGINT and SIGTERM of this process. While modules are imported, or what is done is written down as it happens,
    they end it at once; else they raise SystemExit, so that what was begun is cleaned up, and a second one ends it at
    once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._at_once = True
        for number in _WORDS:
            # As shells have it: what runs in the background, or under nohup, ignores some.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on)

    def _on(self, number: int, frame: FrameType | None) -> None:
        again, self.received = self.received is not None, number
        if self._at_once or again:
            _end(number)
        raise SystemExit(128 + number)

    @contextmanager
    def importing(self) -> Iterator[None]:
        """An import that is broken off may raise anything, or nothing."""
        self._at_once, before = True, self._at_once
        yield
        self._at_once = before

    @contextmanager
    def journaled(self) -> Iterator[None]:
        """Nothing is lost with this process: whoever goes on finds what was done, and its processes end with it."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def running(self) -> None:
        """From now on there is something to clean up."""
        self._at_once = False

    def ended(self) -> None:
        """The result is out: the interpreter, which takes the default handlers as it ends, would die of a signal
        that comes now."""
        for number in _WORDS:
            signal.signal(number, signal.SIG_IGN)


def _end(number: int) -> NoReturn:
    words = f"ucc: {_WORDS[signal.Signals(number)]}\n"
    try:
        os.write(2, words.encode())
    finally:
        os._exit(128 + number)


def main() -> NoReturn:
    """Runs the command that the arguments name, and ends the process with its status."""
    signals = Signals()
    _open_streams()
    from ucutlass.cli import main as command
    from ucutlass.cli import show

    show.utf8()
    signals.running()
    status: Any = 0
    try:
        command.main(obj=signals)
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        if signals.received is None:
            raise
    if signals.received is not None:
        _end(signals.received)
    if show.flushed():
        signals.ended()
        sys.exit(status)
    os._exit(status if isinstance(status, int) and status else 3)


def _open_streams() -> None:
    """Streams that the caller closed lead nowhere; else the next file that is opened would become one."""
    for number, mode in ((0, "r"), (1, "w"), (2, "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the least number, which is this one
            name = ("stdin", "stdout", "stderr")[number]
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
