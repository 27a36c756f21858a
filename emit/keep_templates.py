"""Writes the Python that `ucutlass.emit.environment` keeps of the templates."""

from __future__ import annotations

import json
import sys

from jinja2 import BytecodeCache

from ucutlass.emit.environment import FILE, FOLDER, environment, key


def content() -> str:
    """The file's content for the templates as they are, one line a template."""
    plain, sums = environment(None), BytecodeCache()
    code = {}
    for path in sorted(FOLDER.rglob("*.j2")):
        name, text = path.relative_to(FOLDER).as_posix(), path.read_text(encoding="utf-8")
        code[sums.get_source_checksum(text)] = {"name": name, "python": plain.compile(text, name, raw=True)}
    lines = ",\n".join(f"{json.dumps(digest)}: {json.dumps(made)}" for digest, made in code.items())
    return f'{{"key": {json.dumps(key(plain))}, "code": {{\n{lines}\n}}}}\n'


def main() -> int:
    FILE.write_text(content(), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
