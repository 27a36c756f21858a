"""Writes the Python that `ucutlass.emit.environment` keeps of the templates."""

from __future__ import annotations

import sys

from ucutlass.emit.environment import FILE, compiled


def main() -> int:
    FILE.write_text(compiled(), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
