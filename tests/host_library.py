"""Libraries of entries that run on the host, for the tests of launches."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def host_library(source: Path, folder: Path) -> Path:
    """Returns a library of the entries of a C file. Skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = folder / f"{source.stem}.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library
