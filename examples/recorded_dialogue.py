"""Answers a session from a recorded dialogue with a language model, without a key or a network.

    ucc optimize examples/sources/large_group_norm.ucu -s B=4,C=16,H=256,W=256 --level source --allow-source \\
        --command "python examples/recorded_dialogue.py examples/sources/large_group_norm.jsonl"

Line N of the file is the model's answer to call N, as JSON with its `text`; then it is exhausted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    call = json.load(sys.stdin)["call"]
    answers = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    print(answers[call] if call < len(answers) else json.dumps({"exhausted": True}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
