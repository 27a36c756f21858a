"""Runs a session at source level with a proposer that edits an emitted layer norm by rote, and adopts what it found.

    python -m benchmarks.source_session [--out FOLDER] [-s T=4096,D=1024] [--edits 3]

The edits are one that does not compile, one that is right and slower, and others that may be faster: gain and shift
are loaded before the reduction's barriers, results are stored as streaming, rows are loaded past the first cache.
Needs an NVIDIA GPU. Prints what became of each candidate, where the session's seconds went, and what adopting its
best with `ucc adopt` takes by part. FOLDER keeps the journal, the winner and what the commands printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

from ucutlass.files import put

PROGRAM = Path(__file__).parent.parent / "examples" / "layer_norm.ucu"

_LOADS = """\
        Pack<__half, kVector> raw1[1];
        {
          int64_t o = 0;
          [[maybe_unused]] bool in = true;
          o += (q1);
          raw1[0] = in && true ? load<kVector, 8>(p.t1 + o) : splat<kVector>(__half(0.0f));
        }
        Pack<__half, kVector> raw2[1];
        {
          int64_t o = 0;
          [[maybe_unused]] bool in = true;
          o += (q1);
          raw2[0] = in && true ? load<kVector, 8>(p.t2 + o) : splat<kVector>(__half(0.0f));
        }
"""

_EARLY = """\
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    int64_t const column = (int64_t(i) * kThreads + threadIdx.x) * 8;
    raw1[i] = load<kVector, 8>(p.t1 + column);
    raw2[i] = load<kVector, 8>(p.t2 + column);
  }
  reduce(r2, buffer);
"""


def broken(file: str) -> str:
    return file.replace("__ldg(", "__ldg_streaming(")


def slower(file: str) -> str:
    return file.replace("  int64_t at0 = row;\n", "  __nanosleep(3000);\n  int64_t at0 = row;\n")


def early_loads(file: str) -> str:
    """Gain and shift are on their way while the row is reduced."""
    late = file.replace(_LOADS, "").replace("number(raw1[0], v)", "number(raw1[i], v)")
    return late.replace("number(raw2[0], v)", "number(raw2[i], v)").replace("  reduce(r2, buffer);\n", _EARLY)


def streaming_stores(file: str) -> str:
    return file.replace('"st.global.v4.b32', '"st.global.cs.v4.b32')


def loads_past_l1(file: str) -> str:
    plain = "    Bits const bits = __ldg(reinterpret_cast<Bits const*>(source + i));\n"
    past = """\
    Bits bits;
    if constexpr (sizeof(Bits) == 16) {
      asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w) : "l"(source + i));
    } else {
      bits = __ldg(reinterpret_cast<Bits const*>(source + i));
    }
"""
    return file.replace(plain, past)


EDITS: Sequence[tuple[str, Callable[[str], str]]] = (
    ("a function that there is none of", broken),
    ("every thread sleeps", slower),
    ("gain and shift are loaded before the reduction", early_loads),
    ("streaming stores", streaming_stores),
    ("loads past L1", loads_past_l1),
)


def propose() -> None:
    """Answers a request of `ucc optimize --command`: the edit that is due, as a diff or as a whole file."""
    asked = json.load(sys.stdin)
    call = int(asked["call"])
    if call >= len(EDITS):
        print(json.dumps({"exhausted": True}))
        return
    why, edit = EDITS[call]
    file = asked["source"]["text"]
    edited = edit(file)
    if call % 2:
        entry = {"source": edited, "why": why}
    else:
        lines = unified_diff(
            file.splitlines(), edited.splitlines(), "a/kernel.cu", "b/kernel.cu", lineterm=""
        )
        entry = {"patch": "\n".join(lines) + "\n", "why": why}
    print(json.dumps({"programs": [entry]}))


# --- the run ---------------------------------------------------------------------


def ucc(folder: Path, name: str, *arguments: str) -> Any:
    """Returns what a command printed as JSON, None where it failed; keeps all that it said."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ucutlass.cli", *arguments, "--json"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )
    put(folder / f"{name}.json", done.stdout)
    put(folder / f"{name}.err", done.stderr)
    print(f"\n{name}: status {done.returncode}, {time.monotonic() - start:.1f} s", flush=True)
    if done.stderr:
        print(done.stderr[-3000:], flush=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return None


def candidates(journal: Path) -> None:
    from ucutlass.agent.journal import Journal
    from ucutlass.agent.outcome import words
    from ucutlass.agent.session import replay_events

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--propose", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("-s", "--sizes", default="T=4096,D=1024")
    parser.add_argument("--edits", type=int, default=len(EDITS), help="How many of the edits are proposed.")
    asked = parser.parse_args()
    if asked.propose:
        propose()
        return
    folder = asked.out or Path(tempfile.mkdtemp(prefix="ucutlass-source-session-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("UCUTLASS_DATA_DIR", str(folder / "data"))
    journal, best = folder / "sessions.sqlite", folder / "best.ucu"
    command = f"{sys.executable} -m benchmarks.source_session --propose"
    session = ("--level", "source", "--allow-source", "--search", "flat", "--never-stop")
    what = (str(PROGRAM), "-s", asked.sizes)
    row = ucc(
        folder,
        "optimize",
        "optimize",
        *what,
        *session,
        *("--attempts", str(asked.edits), "--command", command, "--journal", str(journal), "-o", str(best)),
    )
    candidates(journal)
    if row is not None and row.get("best", {}).get("source"):
        ucc(folder, "list", "adopt", "--list")
        again = ucc(folder, "adopt", "adopt", f"{best}.cu", "--for", *what, "--slower")
        print("adopting took by part:", None if again is None else again.get("seconds"))


if __name__ == "__main__":
    main()
