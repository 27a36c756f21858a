"""Measures of the source tree: what a reorganisation must lower.

    python -m benchmarks.house [--root FOLDER] [--json] [--test-seconds S]

Prints the lines of each room by kind of file, the names that several modules define as classes, the modules
outside the kernel families' folders that name a family, the places that parse program text, the words of the
documentation, local variables whose names do not say what they hold, and switched-off formatting. Counts are of
the tree under FOLDER, which may be a checkout of another commit. The seconds of the test command are measured by
hand and given.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOMS = ("grammar", "ucutlass", "emit", "runtime", "agent")
OTHERS = ("tests", "benchmarks", "examples")

OF_FAMILIES = (
    "ucutlass/kernels/",
    "emit/",
    # The layout before `ucutlass/kernels/`.
    "ucutlass/families/",
    "ucutlass/plans/",
    "ucutlass/rules/",
    *(
        f"ucutlass/{name}.py"
        for name in ("case", "fitting", "heuristic", "plan", "planner", "search", "transpose", "winners")
    ),
)
"""Where a family may be named."""

FAMILY_WORDS = "Attention|Conv|Convolution|Direct|Gather|Gemm|Gemv|GroupedGemm|Im2col|Places|Products|Reduction|Simt|Sm80|Sm90|Sweep|Wgrad"

FAMILY_TYPE = re.compile(rf"(?:{FAMILY_WORDS})(?:Candidate|Form|Match|Plan|Planned|Problem|Schedule)")
"""The names of a family's types."""

FAMILY_MODULE = re.compile(
    r"ucutlass\.(?:kernels\.(?:attention|convolution|gemm|grouped_gemm|reduction)"
    r"|families\.(?:attention|convolution|gemm|products|scaled|sweep)\w*"
    r"|plans\.(?:attention|convolution|im2col|places|products|sweep)\w*"
    r"|(?:case|fitting|heuristic|plan|planner|search|transpose|winners)|rules"
    r"|emit\.(?:attention|conv|gemm|gemv|grouped_gemm|lean|products|reduction|staged|sweep)\w*)(?:\.\w+)*"
)
"""The modules of one family."""

SHARED_NAMES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "ucutlass.kernels.gemm.plan": frozenset({"Product", "ScalarKind"}),
        "ucutlass.kernels.violation": frozenset({"Violation"}),
    }
)
"""What stands in a family's module and is of no family."""

PARSERS = frozenset(
    {
        "ucutlass.grammar.parse.parse",
        "ucutlass.check.check",
        "ucutlass.check.check_with_warnings",
        "ucutlass.frontend.parsed",
        "ucutlass.frontend.read",
        "ucutlass.frontend.read_text",
    }
)
"""The functions that parse a program's text, by the modules that define them."""

VAGUE_NAMES = frozenset(
    {
        "made",
        "found",
        "said",
        "told",
        "kept",
        "asked",
        "wanted",
        "one",
        "got",
        "known",
        "given",
        "taken",
        "drawn",
        "seen",
    }
)
"""Names of variables that do not say what they hold."""

# --- the tree -------------------------------------------------------------------------


def files_of(root: Path, folder: str) -> list[Path]:
    """The files of a room, not through the links that make the rooms importable."""
    links = tuple(root / "ucutlass" / room for room in ROOMS)
    return [
        path
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
        and "__pycache__" not in path.parts
        and not any(part.endswith(".egg-info") for part in path.parts)
        and not any(link.is_symlink() and path.is_relative_to(link) for link in links)
    ]


def trees(root: Path) -> dict[str, ast.Module]:
    """The modules of the rooms, by their paths in the tree."""
    paths = [path for room in ROOMS for path in files_of(root, room) if path.suffix == ".py"]
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def dotted(path: str) -> str:
    """The name by which a module is imported."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.split(".")[0] == "ucutlass" else f"ucutlass.{name}"


def lines(root: Path) -> dict[str, dict[str, int]]:
    """Lines by folder and suffix."""
    counts: dict[str, Counter[str]] = {}
    for folder in (*ROOMS, *OTHERS):
        counts[folder] = Counter()
        for path in files_of(root, folder):
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            counts[folder][path.suffix or path.name] += len(text.splitlines())
    return {folder: dict(count.most_common()) for folder, count in counts.items()}


# --- measures of modules -----------------------------------------------------------------


def duplicate_classes(modules: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Class names of several modules, with those modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and path not in places[node.name]:
                places[node.name].append(path)
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def naming_families(modules: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """The modules outside the families' folders that name a family, with the names."""
    named = {
        path: sorted(set(_family_names(tree)))
        for path, tree in modules.items()
        if not path.startswith(OF_FAMILIES)
    }
    return {path: names for path, names in named.items() if names}


def _family_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if FAMILY_TYPE.fullmatch(name):
                yield name
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    whole = f"{module}.{alias.name}"
                    of_family = FAMILY_MODULE.fullmatch(module) or FAMILY_MODULE.fullmatch(whole)
                    if FAMILY_TYPE.fullmatch(alias.name):
                        yield alias.name
                    elif of_family and alias.name not in SHARED_NAMES.get(module, ()):
                        yield whole
            case ast.Import(names=names):
                yield from (alias.name for alias in names if FAMILY_MODULE.fullmatch(alias.name))


def parsing_calls(modules: Mapping[str, ast.Module]) -> list[str]:
    """`path:line function` of every call of a parser, by what its name was imported as."""
    calls: list[str] = []
    for path, tree in modules.items():
        own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        imported = _imported(tree) | {name: f"{dotted(path)}.{name}" for name in own}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (called := _called(node.func, imported)) in PARSERS:
                calls.append(f"{path}:{node.lineno} {called}")
    return calls


def _imported(tree: ast.Module) -> dict[str, str]:
    """What the imports of a module, wherever they stand, bind to which dotted names."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=aliases):
                names |= {a.asname or a.name: f"{module}.{a.name}" for a in aliases}
            case ast.Import(names=aliases):
                names |= {a.asname or a.name.split(".")[0]: a.name for a in aliases}
    return names


def _called(function: ast.expr, imported: Mapping[str, str]) -> str:
    match function:
        case ast.Name(id=name):
            return imported.get(name, name)
        case ast.Attribute(value=value, attr=name):
            return f"{_called(value, imported)}.{name}"
        case _:
            return ""


def vague_locals(modules: Mapping[str, ast.Module]) -> Counter[str]:
    """How many functions have a local variable or a parameter of each of the names."""
    counts: Counter[str] = Counter()
    for tree in modules.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                counts.update(_bound(node) & VAGUE_NAMES)
    return counts


def _bound(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Names that a function binds, without those of functions inside it."""
    names: set[str] = set()
    body = function.body if isinstance(function.body, list) else [function.body]
    left: list[ast.AST] = [function.args, *body]
    while left:
        node = left.pop()
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
            case (
                ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.ExceptHandler(name=str(name))
            ):
                names.add(name)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            left += ast.iter_child_nodes(node)
    return names


# --- text --------------------------------------------------------------------------------


def words(root: Path) -> dict[str, int]:
    """Words of each page, those between white space."""
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    return {
        path.relative_to(root).as_posix(): len(path.read_text(encoding="utf-8").split())
        for path in pages
        if path.is_file()
    }


def switched_off_formatting(root: Path) -> int:
    """Comments that keep a formatter away."""
    mark = re.compile(r"#\s*fmt:\s*(?:skip|off)")
    paths = [path for folder in (*ROOMS, *OTHERS) for path in files_of(root, folder) if path.suffix == ".py"]
    return sum(len(mark.findall(path.read_text(encoding="utf-8"))) for path in paths)


# --- the report ----------------------------------------------------------------------------


def measures(root: Path) -> dict[str, Any]:
    """All of them, as JSON."""
    modules = trees(root)
    return {
        "lines": lines(root),
        "duplicate_classes": duplicate_classes(modules),
        "naming_families": naming_families(modules),
        "parsing_calls": parsing_calls(modules),
        "words": words(root),
        "vague_locals": dict(vague_locals(modules).most_common()),
        "switched_off_formatting": switched_off_formatting(root),
    }


def report(values: Mapping[str, Any]) -> str:
    """The measures for people."""
    out = ["lines"]
    for folder, kinds in values["lines"].items():
        shown = ", ".join(f"{kind} {count}" for kind, count in list(kinds.items())[:6])
        out.append(f"  {folder:12}{sum(kinds.values()):8}  {shown}")
    of_rooms = sum(sum(values["lines"][room].values()) for room in ROOMS)
    python = sum(values["lines"][room].get(".py", 0) for room in ROOMS)
    out.append(f"  the rooms   {of_rooms:8}  Python {python}")
    classes = values["duplicate_classes"]
    out.append(
        f"class names of several modules: {len(classes)}, {sum(map(len, classes.values()))} definitions"
    )
    most = sorted(classes.items(), key=lambda item: -len(item[1]))
    out += [f"  {name}: {', '.join(paths)}" for name, paths in most]
    named = values["naming_families"]
    out.append(f"modules that name a family outside its folder: {len(named)}")
    out += [f"  {path}: {', '.join(names)}" for path, names in named.items()]
    out.append(f"calls that parse program text: {len(values['parsing_calls'])}")
    out += [f"  {call}" for call in values["parsing_calls"]]
    pages = values["words"]
    docs = sum(count for page, count in pages.items() if page.startswith("docs/"))
    out.append(f"words: docs {docs}, README {pages.get('README.md', 0)}")
    out += [f"  {page} {count}" for page, count in pages.items()]
    locals_ = values["vague_locals"]
    shown = ", ".join(f"{name} {count}" for name, count in locals_.items())
    out.append(f"functions with a local of a vague name: {sum(locals_.values())} ({shown})")
    out.append(f"switched-off formatting: {values['switched_off_formatting']}")
    if values.get("test_seconds") is not None:
        out.append(f"seconds of the test command: {values['test_seconds']:g}")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--test-seconds", type=float)
    options = parser.parse_args()
    values = measures(options.root)
    if options.test_seconds is not None:
        values["test_seconds"] = options.test_seconds
    print(json.dumps(values, indent=1) if options.json else report(values))


if __name__ == "__main__":
    main()
