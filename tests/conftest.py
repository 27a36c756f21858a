"""What every test shares: the golden flag, the seed of property tests, an honest exit status."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ucutlass.runtime.cuda_driver import sleep_while_waiting
from ucutlass.runtime.gpu import at_hand
from ucutlass.runtime.library import Native, NoNative, compile_native, load_native

settings.register_profile(
    "ucutlass", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ucutlass")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")
    parser.addoption("--every", type=int, default=1, help="of the tests marked slow, run one in so many")


def pytest_configure(config: pytest.Config) -> None:
    """Collecting 14,000 tests makes no garbage, and looking for it takes a third of the time. Tests build by
    nvcc unless they ask: their stand-ins are of nvcc. A caller's own choice holds. Workers side by side share
    the cores: each computing its references on all of them would take several times as long, and so would
    spinning on a GPU that they share."""
    gc.disable()
    if "PYTEST_XDIST_WORKER" in os.environ and at_hand() is not None:
        sleep_while_waiting()
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    if "torch" in sys.modules:  # another plugin imported it, and it has read the variable
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    os.environ.setdefault("UCUTLASS_BUILD_PATH", os.environ.get("UCUTLASS_BUILD_STAGE", "nvcc"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with tests/golden/NAME, or writes it with --update-golden."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"no golden file {name}; write it with --update-golden and read it"
        assert text == path.read_text()

    return compare


def pytest_collection_finish() -> None:
    """What was collected stays, so no later collection of garbage looks at it."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what this machine cannot run, saying which part is missing. Deselects slow tests by `--every`."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    sampled = set(slow[:: config.getoption("--every")])
    left_out = [item for item in slow if item not in sampled]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        excluded = set(left_out)
        items[:] = [item for item in items if item not in excluded]
    items[:] = _spread(items)
    lacks = {
        "gpu": None if _has_gpu() else "no NVIDIA GPU",
        "nvcc": None if shutil.which("nvcc") else "no nvcc",
    }
    for item in items:
        for marker, missing in lacks.items():
            if missing and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=missing))


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the items with those marked `long` at even distances: each of several workers begins with a
    part of the list, and one that had most of the long ones would end last."""
    long = [item for item in items if item.get_closest_marker("long")]
    rest = [item for item in items if not item.get_closest_marker("long")]
    cuts = [i * len(rest) // max(1, len(long)) for i in range(len(long))] + [len(rest)]
    parts = [[item, *rest[a:b]] for item, a, b in zip(long, cuts, cuts[1:], strict=False)]
    return [item for part in parts for item in part] if parts else rest


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Ends the processes that emulated kernels. A run in which every test was skipped has shown nothing, so
    it fails."""
    if isolated := sys.modules.get("tests.isolated"):
        isolated.close()
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or exitstatus != 0 or hasattr(session.config, "workerinput"):
        return
    if reporter.stats.get("skipped") and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has `isolation.run` fork a process that has imported torch, in place of one that imports it each time."""
    from tests import isolated
    from ucutlass.runtime import isolation

    monkeypatch.setattr(isolation, "run", isolated.run)


@pytest.fixture
def disk_size() -> str:
    """Of `small_disk`; a module that needs another has this fixture of its own."""
    return "256k"


@pytest.fixture
def small_disk(tmp_path: Path, disk_size: str) -> Iterator[Path]:
    """A file system to be filled."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={disk_size},mode=0700", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="session")
def native_launcher(tmp_path_factory: pytest.TempPathFactory) -> Native:
    """The launcher in C, which pipelines and kernels share."""
    return load_native(compile_native(tmp_path_factory.mktemp("native")))


@pytest.fixture(params=["native", "python"])
def route(request: pytest.FixtureRequest) -> Native | NoNative:
    if request.param == "python":
        return NoNative("asked for by the test")
    native = request.getfixturevalue("native_launcher")
    assert isinstance(native, Native)
    return native
