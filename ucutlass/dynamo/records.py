"""What is remembered of graphs from process to process: how each is divided, and what serves it faster.

Records lie in the folder `graphs` of the cache, one file of JSON each, with its digest. A file that is not
there, damaged, of another form, or in a folder that others may write is as none.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import fx

from ucutlass.dynamo.partition import Division, Part
from ucutlass.dynamo.region import NAME, Order, Region, values_of
from ucutlass.files import read_text, write
from ucutlass.runtime import folders, switches
from ucutlass.runtime.cache import GRAPHS
from ucutlass.runtime.subject import harness_digest

MOST_RECORDS = 4096
"""Files that are kept; of more, those are removed that were read or written the longest ago."""

MOST_BYTES = 16 << 20
"""Bytes of a file that is read."""


@dataclass(frozen=True, slots=True)
class Records:
    """The files in a folder. Nothing is raised: what cannot be read or written is not remembered."""

    folder: Path

    @staticmethod
    def from_switches() -> Records:
        return Records(switches.read().cache_dir / GRAPHS)

    def read(self, key: str) -> Any:
        """Returns the record of a key, None where there is none that can be believed."""
        file = self.folder / key
        if self._untrusted(file):
            return None
        try:
            digest, _, text = read_text(file, MOST_BYTES).partition("\n")
            if digest != _digest(text):
                return None
            record = json.loads(text)
            os.utime(file)
        except (OSError, ValueError, RecursionError):
            return None
        return record

    def write(self, key: str, record: Any) -> None:
        file = self.folder / key
        if self._untrusted(file):
            return
        text = json.dumps(record)
        with suppress(OSError):
            folders.make(self.folder)
            write(file, f"{_digest(text)}\n{text}")
            self._bound()

    def _untrusted(self, file: Path) -> str:
        root = Path(os.path.realpath(self.folder.parent))
        return folders.others_may_write(root, root / self.folder.name, root / self.folder.name / file.name)

    def _bound(self) -> None:
        files = [entry for entry in os.scandir(self.folder) if entry.is_file(follow_symlinks=False)]
        excess = len(files) - MOST_RECORDS
        if excess <= 0:
            return
        for entry in sorted(files, key=lambda e: e.stat(follow_symlinks=False).st_mtime)[:excess]:
            with suppress(FileNotFoundError):  # another process removed it
                Path(entry.path).unlink()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- keys -------------------------------------------------------------------------


def key_of(graph: fx.GraphModule, *more: str) -> str:
    """Returns what determines a graph's division: its operators and their arguments, the tensors' shapes, strides
    and types, the names that readers see, this package's code, torch's version, and `more`."""
    lines = [
        [node.op, node.name, _words(node.target), _words(node.args), _words(node.kwargs), *_value(node)]
        for node in graph.graph.nodes
    ]
    return _digest(
        json.dumps([harness_digest(), torch.__version__, switches.read().averages_ahead, *more, lines])
    )


def _value(node: fx.Node) -> list[str]:
    example = node.meta.get("example_value")
    examples = list(example) if isinstance(example, tuple | list) else [example]
    return [str(node.meta.get(NAME, "")), *map(_facts, [*values_of(node), *examples])]


def _facts(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    strides = tuple(value.stride()) if value.layout is torch.strided else value.layout
    return f"{value.dtype} {tuple(value.shape)} {strides} {value.device.type} {type(value).__name__}"


def _words(value: Any) -> str:
    match value:
        case fx.Node():
            return f"%{value.name}"
        case list() | tuple():
            return f"({', '.join(map(_words, value))})"
        case Mapping():
            return f"{{{', '.join(f'{k}: {_words(v)}' for k, v in value.items())}}}"
        case slice():
            return f"slice({_words(value.start)}, {_words(value.stop)}, {_words(value.step)})"
        case str():
            return repr(value)
        case FunctionType() | BuiltinFunctionType():
            # Its text has an address, which is another in each process.
            return f"{value.__module__}.{value.__qualname__}"
        case _:
            return str(value)


# --- divisions --------------------------------------------------------------------


def division_record(division: Division) -> dict[str, Any]:
    """Returns what `division_from` reads."""
    parts = [
        [p.name, p.nodes, p.region.text, p.region.name, p.region.inputs, p.region.outputs]
        for p in division.parts
    ]
    return {"parts": parts, "refused": dict(division.refused)}


def division_from(record: Any, nodes: Collection[str]) -> Division | None:
    """Returns the division that a record has, None for one of another form or of another graph than that of
    these nodes."""
    try:
        parts = tuple(
            Part(
                str(name),
                tuple(map(str, members)),
                Region(str(text), str(program), _edges(inputs), _edges(outputs)),
            )
            for name, members, text, program, inputs, outputs in record["parts"]
        )
        refused = {str(node): str(why) for node, why in record["refused"].items()}
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    graph_nodes = set(nodes)
    return Division(parts, refused) if all(graph_nodes.issuperset(part.nodes) for part in parts) else None


def _edges(pairs: Any) -> tuple[tuple[int, Order], ...]:
    return tuple((int(number), tuple(int(axis) for axis in order)) for number, order in pairs)
