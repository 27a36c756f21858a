"""The package: what pyproject lists is what lies on disk, and the wheel holds all of it."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("grammar", "emit", "runtime", "agent")
GENERATED = ("grammar/ucutlass.tables.json", "emit/templates.json")
"""Files of the checkout that git does not hold: setup.sh writes them, and the build of a wheel."""

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib


def _settings() -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return settings


def _folder(package: str) -> Path:
    parts = package.split(".")
    return ROOT.joinpath(*(parts[1:] if len(parts) > 1 and parts[1] in ROOMS else parts))


def _packages_on_disk() -> set[str]:
    found = {"ucutlass"}
    for room in ("ucutlass", *ROOMS):
        for path in (ROOT / room).rglob("__init__.py"):
            inner = path.parent.relative_to(ROOT).parts
            if room == "ucutlass" and len(inner) > 1 and inner[1] in ROOMS:
                continue  # through a link
            found.add(".".join(inner if room == "ucutlass" else ("ucutlass", *inner)))
    return found


def _data_on_disk(package: str) -> set[str]:
    """Files that are no Python, of a package and of its folders that are none."""
    folder = _folder(package)
    texts: set[str] = set()
    for path in folder.rglob("*"):
        inner = path.relative_to(folder)
        if not path.is_file() or path.suffix in (".py", ".pyc") or "__pycache__" in inner.parts:
            continue
        if package == "ucutlass" and inner.parts[0] in ROOMS:
            continue
        if not any(
            (folder / parent / "__init__.py").exists() for parent in inner.parents if str(parent) != "."
        ):
            texts.add(inner.as_posix())
    return texts


def test_every_folder_with_modules_is_a_listed_package() -> None:
    assert set(_settings()["packages"]) == _packages_on_disk()


def test_every_folder_that_holds_python_is_a_package() -> None:
    for room in ("ucutlass", *ROOMS):
        for path in (ROOT / room).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


@pytest.mark.parametrize("package", _settings()["packages"])
def test_every_data_file_is_matched(package: str) -> None:
    patterns = [p.replace("**/", "*") for p in _settings()["package-data"].get(package, [])]
    missed = {f for f in _data_on_disk(package) if not any(fnmatch.fnmatch(f, p) for p in patterns)}
    assert not missed


@pytest.mark.parametrize("room", ROOMS)
def test_the_links_are_links(room: str) -> None:
    link = ROOT / "ucutlass" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..") / room
    assert (link / "__init__.py").exists()
    assert _settings()["package-dir"][f"ucutlass.{room}"] == room


def _run(folder: Path, code: str) -> str:
    """What code prints in a process that stands in `folder` and sees nothing of this checkout."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SEEN = (
    "import ucutlass, ucutlass.cli, ucutlass.emit, ucutlass.runtime, ucutlass.grammar.parse as p, "
    "ucutlass.guide as g;"
    "from importlib.resources import files;"
    "print(len(p.grammar_text()), len(g.guide()), "
    "files('ucutlass.emit').joinpath('gemm/sm90.j2').is_file());"
    "print(ucutlass.__file__)"
)


def test_a_checkout_imports() -> None:
    numbers, place = _run(ROOT, SEEN).splitlines()
    assert numbers.endswith("True")
    assert Path(place) == ROOT / "ucutlass" / "__init__.py"


def test_a_checkout_without_links_imports(tmp_path: Path) -> None:
    copied = _copy(tmp_path / "checkout")
    for room in ROOMS:
        (copied / "ucutlass" / room).unlink()
    assert _run(copied, SEEN).splitlines()[0].endswith("True")


@pytest.mark.slow
def test_the_wheel_holds_everything(tmp_path: Path) -> None:
    source = _copy(tmp_path / "source")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(tmp_path), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
        scripts = next(n for n in archive.namelist() if n.endswith("entry_points.txt"))
        assert re.search(r"^ucc = ucutlass\.entry:main$", archive.read(scripts).decode(), re.MULTILINE)
        archive.extractall(tmp_path / "site")
    expected = {f"ucutlass/{path}" for path in GENERATED}
    for package in _settings()["packages"]:
        inside = package.replace(".", "/")
        expected |= {f"{inside}/{p.name}" for p in _folder(package).glob("*.py")}
        expected |= {f"{inside}/{name}" for name in _data_on_disk(package)}
    assert names == expected
    numbers, place = _run(tmp_path / "site", SEEN).splitlines()
    assert numbers.endswith("True")
    assert Path(place).is_relative_to(tmp_path / "site")


def _copy(target: Path) -> Path:
    """The files that make the package, links as links, no leftovers of builds."""
    target.mkdir()
    what = ["pyproject.toml", "setup.py", "README.md", "ucutlass", *ROOMS]
    subprocess.run(
        ["cp", "-a", *(str(ROOT / name) for name in what if (ROOT / name).exists()), str(target)], check=True
    )
    for generated in GENERATED:
        (target / generated).unlink(missing_ok=True)
    for cache in list(target.rglob("__pycache__")):
        subprocess.run(["rm", "-r", str(cache)], check=True)
    return target
