from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from ucutlass.runtime import switches
from ucutlass.runtime.errors import SwitchError


def test_defaults_and_empty_values() -> None:
    values = switches.read({"UCUTLASS_CACHE_SIZE": "", "UCUTLASS_BUILD_JOBS": "", "UCUTLASS_BUILD_STAGE": ""})
    assert values == switches.read({})
    assert values.cache_bytes == 10 * 2**30
    assert values.jobs is None and values.cuda_home is None
    assert values.stage == switches.DEFAULT_STAGE
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
    assert set(switches.DESCRIPTIONS) == names | {switches.DATA_DIR, switches.BUILD_STAGE}


@pytest.mark.parametrize("stage", get_args(switches.BuildPath))
def test_the_stage_is_one_that_its_description_names(stage: str) -> None:
    assert switches.read({"UCUTLASS_BUILD_STAGE": stage}).stage == stage
    assert stage in re.findall(r"\w+", switches.DESCRIPTIONS[switches.BUILD_STAGE])


@pytest.mark.parametrize("value", ["B", "c", "plain ", "none"])
def test_another_stage_is_told_which_there_are(value: str) -> None:
    with pytest.raises(SwitchError, match="one of plain, a, b, auto") as caught:
        switches.read({"UCUTLASS_BUILD_STAGE": value})
    assert "UCUTLASS_BUILD_STAGE" in str(caught.value) and value in str(caught.value)
