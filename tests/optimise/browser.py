"""A page in Debian's chromium, headless, spoken to over a pipe by the DevTools protocol, without a driver."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
)

SECONDS = 60.0
"""For one answer; a cold start on a busy machine takes a few."""


def found() -> str | None:
    """A browser on PATH."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Tab:
    """One page. `events` are those that were heard, in order."""

    out: int
    into: int
    session: str = ""
    number: int = 0
    waiting: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)

    def send(self, method: str, **given: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": given}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._next()
            if heard.get("id") == self.number:
                assert "error" not in heard, heard["error"]
                result: dict[str, Any] = heard["result"]
                return result
            self.events.append(heard)

    def wait(self, method: str) -> None:
        while not any(e.get("method") == method for e in self.events):
            self.events.append(self._next())

    def heard(self, method: str) -> list[dict[str, Any]]:
        return [e["params"] for e in self.events if e.get("method") == method]

    def value(self, script: str) -> Any:
        """What an expression gives. It is the test's, not the page's: a page's policy does not bind it."""
        actual = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in actual, actual["exceptionDetails"]
        return actual["result"].get("value")

    def show(self, url: str) -> None:
        self.events.clear()
        self.send("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

    def look(self, width: int, height: int = 900, dark: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        """Of the whole page, PNG."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self.waiting:
            ready, _, _ = select.select([self.into], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser said nothing for {SECONDS:g} s")
            actual = os.read(self.into, 1 << 20)
            if not actual:
                raise EOFError("the browser ended")
            self.waiting += actual
        message, _, self.waiting = self.waiting.partition(b"\0")
        read: dict[str, Any] = json.loads(message)
        return read


@contextmanager
def opened(program: str, profile: Path) -> Iterator[Tab]:
    """A browser with one empty page, until the block ends."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    def placed() -> None:
        """The protocol's ends are 3 and 4, whatever else stands there."""
        high = os.dup(to_read), os.dup(from_write)
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    child = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}"],
        preexec_fn=placed,
        pass_fds=(3, 4),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        tab = Tab(to_write, from_read)
        page = tab.send("Target.createTarget", url="about:blank")["targetId"]
        tab.session = tab.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.send(f"{domain}.enable")
        yield tab
        tab.session = ""
        with suppress(EOFError, BrokenPipeError):
            tab.send("Browser.close")
    finally:
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        os.close(to_write)
        os.close(from_read)


def rows(png: bytes) -> list[bytes]:
    """A picture's rows as they are stored, filters and all: enough to tell whether it is blank."""
    data, at, width = b"", 8, 0
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width = int.from_bytes(body[:4], "big") * {2: 3, 6: 4}[body[9]] + 1
        if kind == b"IDAT":
            data += body
        at += 12 + length
    raw = zlib.decompress(data)
    return [raw[i : i + width] for i in range(0, len(raw), width)]
