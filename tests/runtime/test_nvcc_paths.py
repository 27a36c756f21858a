"""nvcc runs its passes by a shell: no path that it is given may be more than a name there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_fakes import fake_nvcc, source

from ucutlass.runtime import errors, nvcc_paths, toolchain
from ucutlass.runtime.build import build
from ucutlass.runtime.cache import Cache

AS_NVCC = """
sh -c "cat \\"$TMPDIR/../$last\\" > \\"$PWD/kernel.so\\""
"""
"""What nvcc does: a path between double quotes in a line for the shell."""

HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "${HOME}",
    '"; touch pwned; "',
    "a\\",
    "a\nb",
    "a;b",
    "a&b",
    "a|b",
    "a>b",
    "a<b",
    "(a)",
    "a*",
    "a?",
]

HARMLESS = ["a b", "a'b", "\u00e9", "a,b", "a=b", "a#b", "~a", "a!b", "{a,b}", "[a]", "%a", "-a"]

NAMES = st.text(
    st.characters(max_codepoint=0x2FF, exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1
)


@given(NAMES)
def test_a_path_that_is_not_refused_is_its_own_name_in_a_shell(name: str) -> None:
    path = f"/x/{name}/y"
    if not nvcc_paths.characters(Path(path)):
        completed = subprocess.run(["/bin/sh", "-c", f'printf %s "{path}"'], capture_output=True, check=True)
        assert completed.stdout == path.encode()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_cache_at_such_a_path_is_refused_before_nvcc_is_started(tmp_path: Path, name: str) -> None:
    fake = fake_nvcc(tmp_path / "toolkit")
    fake.behave(AS_NVCC)
    with pytest.raises(errors.CacheUnusable, match="which nvcc's shell would read") as caught:
        build(source(), fake.toolchain, Cache(tmp_path / name / "cache", 1 << 30))
    assert "UCUTLASS_CACHE_DIR" in caught.value.fix and "\n" not in str(caught.value)
    assert fake.runs == [] and not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("name", HARMLESS)
def test_a_cache_at_a_strange_path_works(tmp_path: Path, name: str) -> None:
    fake = fake_nvcc(tmp_path / "toolkit")
    fake.behave(AS_NVCC)
    artifact = build(source(), fake.toolchain, Cache(tmp_path / name / "cache", 1 << 30))
    assert artifact.library.read_text() == source().text


def test_a_link_to_such_a_path_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "$(touch pwned)").mkdir()
    (tmp_path / "link").symlink_to("$(touch pwned)")
    with pytest.raises(errors.CacheUnusable, match=r"'\$' '\(' '\)'"):
        Cache(tmp_path / "link", 1).load("a" * 64)


def test_a_tool_chain_at_such_a_path_is_refused(tmp_path: Path) -> None:
    for name in ("nvcc", "g++"):
        folder = tmp_path / "$(touch pwned)" / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("#!/bin/sh\necho V13.0.88\n")
        (folder / name).chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    with pytest.raises(errors.PathUnusable, match="UCUTLASS_CUDA_HOME"):
        toolchain.find_nvcc({"UCUTLASS_CUDA_HOME": str(folder.parent)})
    with pytest.raises(errors.PathUnusable, match="UCUTLASS_CUDA_HOME"):
        toolchain.find_nvcc(path)
    with pytest.raises(errors.PathUnusable, match="first on PATH"):
        toolchain.find_host(path)
