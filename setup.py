"""Adds to a wheel what its sources determine: the parser's tables and the templates' Python.

pyproject.toml has everything else. Both modules are loaded by their paths, since the package itself needs more
than a build environment has.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


def _module(path: str) -> ModuleType:
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithTables(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # setup.sh writes them, with the versions of Lark and Jinja that will read them
        tables = _module("grammar/tables.py")
        package = Path(self.build_lib, "ucutlass")
        content = tables.tables(tables.grammar_text())
        (package / "grammar/ucutlass.tables.json").write_text(content, encoding="ascii")
        (package / "emit/templates.json").write_text(
            _module("emit/environment.py").compiled(), encoding="ascii"
        )


setup(cmdclass={"build_py": BuildWithTables})
