from __future__ import annotations

import sys
from pathlib import Path

# The fakes here, and the machine of the tests of commands.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "cli")]
