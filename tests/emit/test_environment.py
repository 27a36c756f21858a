"""Kept Python of the templates is that of the templates, and no other is used."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

from ucutlass.emit import environment as kept

NAMES = sorted(p.relative_to(kept.FOLDER).as_posix() for p in kept.FOLDER.rglob("*.j2"))

MARK = "\nkept_marker = 1\n"


@cache
def now() -> Any:
    """What would be kept of the templates as they are. To be read only."""
    return json.loads(kept.compiled())


def marked(tmp_path: Path, **other: Any) -> Environment:
    """An environment whose kept Python leaves a mark in every template that is loaded from it."""
    code = {digest: {**made, "python": made["python"] + MARK} for digest, made in now()["code"].items()}
    file = tmp_path / "templates.json"
    file.write_text(json.dumps({"key": {**now()["key"], **other}, "code": code}))
    return kept.environment(kept.Kept(file))


def from_kept(environment: Environment, name: str) -> bool:
    """Whether the template's code came from the file."""
    source, path, _ = environment.loader.get_source(environment, name)  # type: ignore[union-attr]
    assert environment.bytecode_cache is not None
    bucket = environment.bytecode_cache.get_bucket(environment, name, path, source)
    return bucket.code is not None and "kept_marker" in bucket.code.co_names


@pytest.mark.parametrize("content", [None, "", "{", "\xff"])
def test_without_a_file_templates_are_compiled_from_their_text(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "templates.json"
    if content is not None:
        file.write_text(content, encoding="latin-1")
    environment = kept.environment(kept.Kept(file))
    assert not any(from_kept(environment, name) for name in NAMES)
    assert all(environment.get_template(name).name == name for name in NAMES)


def test_every_template_is_kept_once() -> None:
    assert sorted(made["name"] for made in now()["code"].values()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_kept_python_is_used(tmp_path: Path, name: str) -> None:
    assert from_kept(marked(tmp_path), name)


@pytest.mark.parametrize("other", [{"jinja2": "0"}, {"trim_blocks": False}, {"optimized": False}])
def test_python_of_another_jinja_or_of_other_settings_is_not_used(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    environment = marked(tmp_path, **other)
    assert not any(from_kept(environment, name) for name in NAMES)


def test_python_of_another_text_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that was edited is compiled from its text, whatever is kept of the old one."""
    file, folder = tmp_path / "templates.json", tmp_path / "templates"
    file.write_text(kept.compiled())
    folder.mkdir()
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((kept.FOLDER / name).read_bytes())
    edited = NAMES[0]
    (folder / edited).write_text("edited {{ 1 + 1 }}")
    monkeypatch.setattr(kept, "FOLDER", folder)
    environment = kept.environment(kept.Kept(file))
    assert environment.get_template(edited).render() == "edited 2"


def test_kept_python_names_the_template_in_tracebacks(tmp_path: Path) -> None:
    environment = marked(tmp_path)
    for name in NAMES:
        assert environment.get_template(name).filename == str(kept.FOLDER / name)
