"""The documents under docs/: their programs check, their codes and links exist, their tables hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from tests import diagnostics_page
from ucutlass import frontend, ir
from ucutlass.cli import main
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.ir.schedule import FIELDS
from ucutlass.kernels.families import FAMILIES
from ucutlass.runtime.environment_allowlist import ALLOWED
from ucutlass.runtime.switches import DESCRIPTIONS

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
WRITTEN = [p for p in PAGES if p != diagnostics_page.PAGE]
"""Pages by hand; the programs of the generated one are earned while it is made."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the words behind its opening fence and its text."""

    place: str
    words: tuple[str, ...]
    text: str


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    opened, words = 0, tuple[str, ...]()
    lines = page.read_text().split("\n")
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if opened:
            found.append(Block(f"{page.name}:{opened}", words, "\n".join(lines[opened : number - 1]) + "\n"))
            opened = 0
        else:
            opened, words = number, tuple(line[3:].split())
    assert not opened, f"{page.name}:{opened}: the block is never closed"
    return found


PROGRAMS = [b for page in WRITTEN for b in blocks(page) if b.words[:1] == ("ucu",)]


def codes(text: str) -> set[str]:
    """What the checker, the recogniser and the schedule rules say of a text."""
    try:
        checked = frontend.read_text(text)
        texts: set[str] = set()
        for program in checked.module.programs:
            if isinstance(program, ir.Kernel):
                texts |= {d.code for d in frontend.check_schedules(checked, program)}
        return texts
    except ProgramError as error:
        return {d.code for d in error.diagnostics}


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda b: b.place)
def test_programs_check(block: Block) -> None:
    """`ucu`: a kernel of today's families; `ucu later`: it type-checks, its family is to come;
    `ucu error CODE`: it is refused with this code."""
    match block.words:
        case ("ucu",):
            assert codes(block.text) == set()
        case ("ucu", "later"):
            assert codes(block.text) <= {"UC0300"}
        case ("ucu", "error", code):
            assert code in codes(block.text)
        case _:
            pytest.fail(f"{block.place}: unknown words {block.words}")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_codes_exist(page: Path) -> None:
    mentioned = set(re.findall(r"UC\d{4}", page.read_text()))
    assert mentioned <= set(diagnostics_page.meanings())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_resolve(page: Path) -> None:
    """Relative links name a file and, behind `#`, one of its headings."""
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not heading or heading in _headings(linked), f"{page.name} links to {target}"


def _prose(page: Path) -> str:
    """The page without its code: fenced, indented behind an empty line, and between backticks."""
    text = re.sub(r"(?<=\n\n)(?:    .*\n)+", "", page.read_text())
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def _headings(page: Path) -> set[str]:
    """GitHub's anchors."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).strip().replace(" ", "-") for t in titles}


_PATH = re.compile(r"`((?:grammar|ucutlass|emit|runtime|tests|examples|benchmarks)/[\w./]*)`")


def test_paths_exist() -> None:
    """Folders and files that the pages name in backticks are there."""
    for page in WRITTEN:
        for name in _PATH.findall(page.read_text()):
            assert (DOCS.parent / name).exists(), f"{page.name} names {name}"


def test_the_language_page_lists_the_fields_of_each_kernel() -> None:
    page = (diagnostics_page.PAGE.parent / "language.md").read_text()
    table = page.partition("| kernel | `warps` | fields besides |")[2].partition("\n\n")[0]
    listed = []
    for row in table.splitlines()[2:]:
        _, _, words, fields, *_ = (
            [n for part in re.findall("`([^`]*)`", cell) for n in re.findall(r"\w+", part)]
            for cell in row.split("|")
        )
        listed.append((tuple(words), frozenset(fields)))
    variants = [v for family in FAMILIES for v in family.variants]
    assert Counter(listed) == Counter((v.words, frozenset(v.fields) - {"warps"}) for v in variants)


def test_diagnostics_page_is_up_to_date(golden: Callable[[str, str], None]) -> None:
    golden("../../docs/diagnostics.md", diagnostics_page.page())


def test_messages_of_all_codes(golden: Callable[[str, str], None]) -> None:
    golden("diagnostic_messages.txt", diagnostics_page.messages())


def test_every_code_has_its_entry() -> None:
    text = diagnostics_page.PAGE.read_text()
    assert set(re.findall(r"^### (UC\d{4})$", text, re.MULTILINE)) == set(diagnostics_page.meanings())


def test_the_language_page_names_every_table_entry() -> None:
    text = (DOCS / "language.md").read_text()
    named = set(re.findall(r"`([\w.]+)", text))
    assert {f.name for f in FUNCTIONS.values() if not f.spelling} <= named
    assert set(ELEMENTS) <= named
    assert set(FIELDS) <= named
    assert set(ir.ReduceOp.__args__) <= named  # type: ignore[attr-defined]


def test_the_commands_page_names_every_command_and_switch() -> None:
    text = (DOCS / "commands.md").read_text()
    for name in main.list_commands(None):  # type: ignore[arg-type]
        assert f"## ucc {name}" in text
    for name, meaning in DESCRIPTIONS.items():
        assert f"`{name}`" in text and meaning in text
    assert f"`{' '.join(ALLOWED)}`" in text


def test_help_describes_every_option_and_the_commands_page_names_none_that_is_not_there() -> None:
    """Options are documented by `--help`. What the page says of one stands in the section of a command that has it,
    or before all of them."""
    common, *rest = re.split(r"^## ucc (\w+)$", (DOCS / "commands.md").read_text(), flags=re.MULTILINE)
    options: dict[str, set[str]] = {}
    for command, option in _options(main):
        assert option.help, f"{max(option.opts, key=len)} of ucc {command} has no help"
        options.setdefault(command, set()).update((*option.opts, *option.secondary_opts))
    known = set().union(*options.values())
    assert set(_OPTION.findall(common)) <= known
    for name, text in zip(rest[::2], rest[1::2], strict=True):
        named = set(_OPTION.findall(text.partition("\n## Environment\n")[0]))
        assert named <= options.get(name, set()), f"{named - options.get(name, set())} of ucc {name}"


def test_commands_of_all_pages_have_the_options_that_they_are_given() -> None:
    """`ucc NAME ... --option` and `benchmarks.NAME ... --option`, in code spans and shell blocks."""
    options: dict[str, set[str]] = {name: set() for name in main.list_commands(None)}  # type: ignore[arg-type]
    for command, option in _options(main):
        options[command].update((*option.opts, *option.secondary_opts))
    given = 0
    others = [DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")]
    for page in (*PAGES, *others):
        for tool, name, rest in _COMMAND.findall(page.read_text()):
            used = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", re.sub(r'"[^"]*"', "", rest)))
            given += len(used)
            if tool:
                assert name in options, f"{page.name}: no `ucc {name}`"
                assert used <= options[name], f"{page.name}: {used - options[name]} of `ucc {name}`"
            else:
                assert used <= _script_options(name), f"{page.name}: {used} of {name}"
    assert given > 60


def _script_options(name: str) -> set[str]:
    """The options in the text of a script and of those that it imports."""
    text = DOCS.parent.joinpath(*name.split(".")).with_suffix(".py").read_text()
    imported = re.findall(r"^from (benchmarks\.\w+) import", text, flags=re.MULTILINE)
    texts = [text, *(DOCS.parent.joinpath(*i.split(".")).with_suffix(".py").read_text() for i in imported)]
    return {option for each in texts for option in re.findall(r'"(--[a-z][a-z0-9-]+)"', each)}


_COMMAND = re.compile(
    r"(?:(ucc) |python -m (?=benchmarks|tests)|`(?=benchmarks\.))([a-z_0-9.]+)\b((?: [^`\n|]*)?)(?=[`\n|])"
)
_OPTION = re.compile(r"(?<=`)--[a-z][a-z-]+")


def _options(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Option]]:
    """Every option with the first word of its command."""
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for inner in command.list_commands(ctx):
            found = command.get_command(ctx, inner)
            assert found is not None
            yield from _options(found, name or inner)
    elif name:
        yield from ((name, p) for p in command.params if isinstance(p, click.Option))
