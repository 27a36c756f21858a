"""The templates' environment, and their Python kept beside them so that a process need not make it.

The first kernel of a process is emitted in 6 ms so, in 24 where Jinja compiles. Python is kept under the
digest of the very text that it was made from, and used by the same Jinja with the same settings only:
what does not fit, or was never written, is compiled from its text. It lies in the package and is trusted as
the package's modules are; nothing is read from, or written to, any other place. It is written at install
(`python -m ucutlass.emit.keep_templates`).
"""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket

FOLDER = Path(__file__).parent
FILE = Path(__file__).with_name("templates.json")

_SETTINGS = ("trim_blocks", "lstrip_blocks", "keep_trailing_newline", "autoescape", "optimized")
"""Of an environment: those by which Jinja makes other Python of the same text."""


class Kept(BytecodeCache):
    """Gives Jinja the Python of `file` for texts that it was made from, and takes none."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def load_bytecode(self, bucket: Bucket) -> None:
        stored = _read(self.file)
        code = stored["code"].get(bucket.checksum)
        if code is not None and stored["key"] == key(bucket.environment):
            bucket.code = compile(code["python"], str(FOLDER / code["name"]), "exec")

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keeps nothing: `keep_templates` alone writes the file."""


@cache
def _read(file: Path) -> Any:
    """{"key": .., "code": {digest of the text: {"name": .., "python": ..}}}, without code where it is absent."""
    try:
        return json.loads(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return {"key": None, "code": {}}


@cache
def templates() -> Environment:
    """The environment of the templates beside this file; an undefined name raises UndefinedError."""
    return environment(Kept(FILE))


def environment(bytecode: Kept | None) -> Environment:
    """Returns an environment like `templates`, with another file of kept Python, or none."""
    return Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        bytecode_cache=bytecode,
    )


@cache
def key(made_by: Environment) -> dict[str, object]:
    """What kept Python is good for, besides the text: Jinja's version and the settings."""
    return {"jinja2": version("jinja2"), **{name: getattr(made_by, name) for name in _SETTINGS}}


def compiled() -> str:
    """Returns the content of FILE for the templates as they are, one line a template."""
    plain, sums = environment(None), BytecodeCache()
    code = {}
    for path in sorted(FOLDER.rglob("*.j2")):
        name, text = path.relative_to(FOLDER).as_posix(), path.read_text(encoding="utf-8")
        code[sums.get_source_checksum(text)] = {"name": name, "python": plain.compile(text, name, raw=True)}
    lines = ",\n".join(f"{json.dumps(digest)}: {json.dumps(row)}" for digest, row in code.items())
    return f'{{"key": {json.dumps(key(plain))}, "code": {{\n{lines}\n}}}}\n'
