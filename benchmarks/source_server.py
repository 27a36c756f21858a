"""Runs `ucc optimize --level source --allow-source` against a local model server, kills it, and resumes it.

    python -m benchmarks.source_server [--out FOLDER] [--source examples/sources/small_products.cu] [--seconds 300]

The model writes SOURCE for the program beside it: first with a name that nothing declares; where it is told the
compiler's error, it looks a symbol up in the headers of CUTLASS, and repairs the file. The command is killed
once the error is in the journal, and resumed. Needs an NVIDIA GPU. Prints what became of each candidate, what was
looked up, where the seconds went, and what `load(.., tuned=True)` takes afterwards; the exit status is 1 where a
part is missing. FOLDER keeps the journal and what the commands printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.optimise.proposers.messages_api import KEY, Scripted, Server, Tokens, calls, events, serving
from ucutlass.agent.journal import Journal
from ucutlass.agent.outcome import words
from ucutlass.agent.session import replay_events
from ucutlass.files import put
from ucutlass.shapes import parse_sizes

SOURCE = Path(__file__).parent.parent / "examples" / "sources" / "small_products.cu"

BROKEN = "undeclared_name"
NAME = "SM80_16x8x16_F32BF16BF16F32_TN"


def model(source: str, server: Server) -> None:
    """Lets the server answer as a model does that writes the source."""

    def answer(request: Mapping[str, Any], tokens: Tokens) -> Scripted:
        messages = request["messages"]
        turn, code = messages[0]["content"][0]["text"], source
        if f'"{BROKEN}" is undefined' not in turn:
            code = source.replace("namespace {", f"namespace {{\nconstexpr int kOfNothing = {BROKEN};", 1)
        elif len(messages) == 1:
            return Scripted(
                chunks=list(events([calls("header_symbol", {"name": f"cute::{NAME}"})], request, tokens))
            )
        return Scripted(chunks=list(events([f"The whole file.\n```cuda\n{code}```\n"], request, tokens)))

    server.scripts += [answer] * 100


def failed_build(journal: Path) -> bool:
    """Returns whether the journal has the candidate that does not compile."""
    if not journal.exists():
        return False
    opened = Journal(journal)
    return any(
        f'"{BROKEN}' in str(e.body)
        for id in opened.sessions()
        for e in opened.events(id)
        if "outcome" in e.body
    )


def run(command: list[str], folder: Path, name: str, seconds: float, journal: Path | None = None) -> int:
    """Runs a command and keeps what it prints. With a journal, kills it once that has the failed build."""
    start = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    while True:
        try:
            out, err = process.communicate(timeout=0.1)
            break
        except subprocess.TimeoutExpired:
            late = time.monotonic() - start > seconds
            if late or (journal is not None and failed_build(journal)):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    put(folder / f"{name}.json", out)
    put(folder / f"{name}.err", err)
    print(f"{name}: status {process.returncode}, {time.monotonic() - start:.1f} s", flush=True)
    return process.returncode


SERVED = """
import json
import sys
import ucutlass
from ucutlass.runtime.inputs import generate
k = ucutlass.load(sys.argv[1], tuned=True)
y = k(*generate(k.program, json.loads(sys.argv[2]), "normal", seed=1, device="cuda"))
print(*[origin.kind for origin in k.origins.values()])
"""


def session(folder: Path, source: Path, sizes: str, seconds: float) -> dict[str, bool]:
    """Runs the session, killed and resumed, in a folder that is empty, and returns which parts of it are there."""
    program, journal = source.with_suffix(".ucu"), folder / "sessions.sqlite"
    ucc = [
        sys.executable,
        "-m",
        "ucutlass.cli",
        "optimize",
        "--journal",
        str(journal),
        "--allow-source",
        "--json",
    ]
    with serving() as server:
        model(source.read_text(encoding="utf-8"), server)
        os.environ |= {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": KEY, "NO_PROXY": "*"}
        begin = [*ucc, str(program), "-s", sizes, "--level", "source", "--attempts", "2", "--search", "flat"]
        words = [*begin, "--never-stop", "--advice", "static", "--model", "claude-opus-5-5"]
        killed = run(words, folder, "killed", seconds, journal) == -signal.SIGKILL
        (id,) = Journal(journal).sessions()
        ended = run([*ucc, "--resume", id[:12]], folder, "resumed", seconds) == 0
        turns = [str(request["messages"]) for request in server.requests]
    candidates(journal)
    extents = dict(parse_sizes((sizes,)))
    served = subprocess.run(
        [sys.executable, "-c", SERVED, str(program), json.dumps(extents)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    print(served.stderr[-1000:], end="")
    return {
        "killed with the failed build in the journal": killed,
        "resumed to its end": ended,
        "the compiler's error was fed back": any(f'"{BROKEN}" is undefined' in turn for turn in turns),
        "a symbol was looked up and found": any(f"struct {NAME}" in turn for turn in turns),
        "the source is served": served.stdout.strip() == "adopted",
    }


def candidates(journal: Path) -> None:
    """Prints what became of each candidate of a journal's session, and where its seconds went."""
    opened = Journal(journal)
    state = replay_events(opened.events(opened.sessions()[0]))
    for node in state.tree.nodes:
        kind = "source" if node.source else "text"
        print(f"{node.id} from {node.parent} ({kind}) {node.why}: {words(node.outcome)}")
        advice = getattr(node.outcome, "advice", "")
        print("".join(f"    {line}\n" for line in advice.splitlines() if line.startswith("ptxas")), end="")
    for event in opened.events(opened.sessions()[0]):
        step_time: Mapping[str, Any] = event.body.get("time", {})
        if step_time:
            parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in step_time["parts"].items())
            print(
                f"{event.kind} {event.body.get('node', event.body.get('call', ''))}: {step_time['wall']:.1f} s: {parts}"
            )
    print("\n".join(state.messages))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--seconds", type=float, default=300.0, help="For each of the two commands.")
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp(prefix="ucutlass-source-server-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("UCUTLASS_DATA_DIR", str(folder / "data"))
    sizes = re.search(r"-s (\S+)", options.source.with_suffix(".ucu").read_text(encoding="utf-8"))
    assert sizes is not None, f"{options.source} does not say what it is adopted for"
    checks = session(folder, options.source, sizes[1], options.seconds)
    for what, held in checks.items():
        print(f"{'yes' if held else 'NO':4} {what}")
    return int(not all(checks.values()))


if __name__ == "__main__":
    sys.exit(main())
