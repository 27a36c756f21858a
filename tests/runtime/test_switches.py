from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from ucutlass.runtime import switches
from ucutlass.runtime.errors import SwitchError


def test_defaults_and_empty_values() -> None:
    values = switches.read({"UCUTLASS_CACHE_SIZE": "", "UCUTLASS_BUILD_JOBS": "", "UCUTLASS_BUILD_PATH": ""})
    assert values == switches.read({})
    assert values.cache_bytes == 10 * 2**30
    assert values.jobs is None and values.cuda_home is None
    assert values.build_path == switches.DEFAULT_BUILD_PATH
    assert values.cache_dir.name == "ucutlass"
    assert values.data_dir.name == "ucutlass" and values.data_dir != values.cache_dir


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("500M", 500 * 2**20), ("20g", 20 * 2**30), ("3KiB", 3072), ("1TB", 2**40)]
)
def test_sizes(text: str, size: int) -> None:
    assert switches.read({"UCUTLASS_CACHE_SIZE": text}).cache_bytes == size


def test_the_others() -> None:
    env = {"UCUTLASS_CACHE_DIR": "/a/b", "UCUTLASS_BUILD_JOBS": "7", "UCUTLASS_CUDA_HOME": "/c"}
    env["UCUTLASS_DATA_DIR"] = "/d"
    values = switches.read(env)
    assert (values.cache_dir, values.jobs, values.cuda_home) == (Path("/a/b"), 7, Path("/c"))
    assert values.data_dir == Path("/d")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UCUTLASS_CACHE_SIZE", "10 apples"),
        ("UCUTLASS_CACHE_SIZE", "-1"),
        ("UCUTLASS_CACHE_SIZE", "\u0661G"),
        ("UCUTLASS_BUILD_JOBS", "0"),
        ("UCUTLASS_BUILD_JOBS", "many"),
        ("UCUTLASS_CACHE_DIR", "relative/folder"),
        ("UCUTLASS_CUDA_HOME", "cuda"),
        ("UCUTLASS_DATA_DIR", "./data"),
    ],
)
def test_a_wrong_value_names_the_switch_and_what_it_takes(name: str, value: str) -> None:
    with pytest.raises(SwitchError, match="such as") as caught:
        switches.read({name: value})
    assert name in str(caught.value) and value in str(caught.value)


def test_every_switch_is_described() -> None:
    names = {switches.CACHE_DIR, switches.CACHE_SIZE, switches.BUILD_JOBS, switches.CUDA_HOME}
    names |= {switches.DATA_DIR, switches.BUILD_PATH, switches.CHECK, switches.AVERAGES_AHEAD}
    assert set(switches.DESCRIPTIONS) == names


@pytest.mark.parametrize("path", get_args(switches.BuildPath))
def test_the_build_path_is_one_that_its_description_names(path: str) -> None:
    assert switches.read({"UCUTLASS_BUILD_PATH": path}).build_path == path
    assert path in re.findall(r"\w+", switches.DESCRIPTIONS[switches.BUILD_PATH])


@pytest.mark.parametrize(("former", "path"), switches.FORMER_BUILD_PATHS.items())
def test_former_names_of_the_switch_and_of_its_values_are_read(former: str, path: str) -> None:
    assert switches.read({"UCUTLASS_BUILD_STAGE": former}).build_path == path
    assert switches.read({"UCUTLASS_BUILD_PATH": former}).build_path == path
    assert switches.read({"UCUTLASS_BUILD_STAGE": former, "UCUTLASS_BUILD_PATH": "auto"}).build_path == "auto"


@pytest.mark.parametrize("name", ["UCUTLASS_BUILD_PATH", "UCUTLASS_BUILD_STAGE"])
@pytest.mark.parametrize("value", ["B", "c", "plain ", "none"])
def test_another_build_path_is_refused_with_those_that_there_are(name: str, value: str) -> None:
    with pytest.raises(SwitchError, match="one of nvcc, nvrtc, auto") as caught:
        switches.read({name: value})
    assert name in str(caught.value) and value in str(caught.value)


@pytest.mark.parametrize("name", ["UCUTLASS_BUILD_PATH", "UCUTLASS_BUILD_STAGE"])
@pytest.mark.parametrize("value", ["lto", "a"])
def test_a_removed_build_path_is_refused_with_what_to_take(name: str, value: str) -> None:
    with pytest.raises(SwitchError, match="was removed: take auto, nvrtc or nvcc") as caught:
        switches.read({name: value})
    assert name in str(caught.value)


def test_the_check_of_programs_is_off_unless_set() -> None:
    assert not switches.read({}).check and not switches.read({"UCUTLASS_CHECK": "0"}).check
    assert switches.read({"UCUTLASS_CHECK": "1"}).check
    with pytest.raises(SwitchError, match="0 or 1"):
        switches.read({"UCUTLASS_CHECK": "yes"})
    assert switches.read({}).averages_ahead
    assert not switches.read({"UCUTLASS_AVERAGES_AHEAD": "0"}).averages_ahead
