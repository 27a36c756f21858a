"""`ucc build --stage`: asked for one kernel, and said where it does not serve."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ucutlass.cli import main
from ucutlass.runtime.cache import Cache

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("linear_gelu.ucu", "--all"), "leave out --all and --shape"),
        (("linear_gelu.ucu", "--shape", "M=64"), "leave out --all and --shape"),
        (("linear_gelu.ucu", "--arch", "sm80"), "only TMA kernels for sm90a"),
    ],
)
def test_says_what_it_does_not_serve(
    arguments: tuple[str, ...], said: str, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(cache.root))
    file, *rest = arguments
    sizes = ("-s", "M=64,N=256,K=256")
    done = CliRunner().invoke(main, ["build", str(EXAMPLES / file), *sizes, "--stage", "a", *rest])
    assert done.exit_code == 2
    assert said in done.output
    assert not cache.entries()


def test_a_plain_load_imports_nothing_of_builds_in_stages() -> None:
    said = "import sys, ucutlass.backend; print(*[m for m in sys.modules if 'staged' in m])"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
