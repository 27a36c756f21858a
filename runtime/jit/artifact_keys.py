"""Remembers which artifact the build of a source came to, so that its parts need not be emitted again.

An artifact's key is made from all that goes into it, and to write that anew takes thirty milliseconds: more
than all else of a warm load. The answer is kept under what determines it: the plain source of the plan, the
stage, the compilers' versions, and the files of this package that make the parts.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from typing import TYPE_CHECKING

from ucutlass.files import write
from ucutlass.runtime import folders
from ucutlass.runtime.build import Artifact, cached_artifact
from ucutlass.runtime.cache import KNOWN, Cache
from ucutlass.runtime.switches import BuildPath
from ucutlass.runtime.toolchain import Toolchain

if TYPE_CHECKING:
    from ucutlass.emit.text import Source

_RUNTIME = Path(__file__).parent.parent
_EMIT = _RUNTIME.parent / "emit"
_MAKERS = (
    *((_EMIT, pattern) for pattern in ("**/*.py", "**/*.j2")),
    *((_RUNTIME, pattern) for pattern in ("jit/*.py", "native/lean.*", "native/divided_*.h")),
)
"""Files that decide what the parts of a kernel are."""


def artifact(source: Source, stage: BuildPath, toolchain: Toolchain, cache: Cache) -> Artifact | None:
    """Returns the finished artifact of this source, where it is known and still there. Raises CacheError."""
    try:
        key = _file(source, stage, toolchain, cache).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if len(key) != hashlib.sha256().digest_size * 2 or not key.isalnum():
        return None
    return cached_artifact(key, cache)


def keep(source: Source, stage: BuildPath, toolchain: Toolchain, cache: Cache, key: str) -> None:
    """Where it cannot be written, the next load takes the long way."""
    with suppress(OSError):
        file = _file(source, stage, toolchain, cache)
        folders.make(file.parent)
        write(file, key)


def _file(source: Source, stage: BuildPath, toolchain: Toolchain, cache: Cache) -> Path:
    material = [
        source.code,
        source.arch,
        stage,
        toolchain.nvcc.version,
        toolchain.host.version,
        toolchain.cutlass.digest,
        _makers(),
    ]
    return cache.root / KNOWN / hashlib.sha256(json.dumps(material).encode()).hexdigest()


@once
def _makers() -> str:
    """Returns the state of those files: a change of any of them forgets all answers."""
    state = []
    for folder, pattern in _MAKERS:
        for path in sorted(folder.glob(pattern)):
            stat = path.stat()
            state.append((path.name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()
