"""`ucc build`, `doctor` and `cache`: what they write, and machines that lack something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_machine import LINEAR, SIZES, Machine

from tests.capabilities import bound_by_modes

Write = Callable[[str], Path]
NO_NVCC = {"UCUTLASS_CUDA_HOME": "", "CUDA_HOME": "/nowhere"}


def test_build_writes_library_header_and_source(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    result = machine.ucc("build", LINEAR, *SIZES, "-o", folder)
    assert result.status == 0, result.err
    lines = dict(line.split("\t", 1) for line in result.out.splitlines())
    entry = lines["entry"]
    assert {p.name for p in folder.iterdir()} == {f"lib{entry}.so", f"{entry}.h", f"{entry}.cu"}
    assert "linear" not in entry, "files are named by digest, never by the program"
    assert f" {entry}(" in (folder / f"{entry}.h").read_text()
    assert f" {entry}(" in (folder / f"{entry}.cu").read_text()
    assert machine.builds == 1


def test_build_again_takes_the_cache(machine: Machine) -> None:
    first = machine.ucc("build", LINEAR, *SIZES, "--json").json
    again = machine.ucc("build", LINEAR, *SIZES, "--json").json
    assert machine.builds == 1
    assert first == again
    assert first.keys() == {
        "kernel",
        "sizes",
        "entry",
        "seconds",
        "library",
        "built",
        "schedule",
        "from",
        "findings",
    }
    assert Path(first["library"]).is_file()


def test_several_shapes_at_once(machine: Machine, tmp_path: Path) -> None:
    """Shapes of one plan share an entry; its header carries the launch parameters of each."""
    folder = tmp_path / "out"
    shapes = ("--shape", "M=4096", "--shape", "M=16", "--shape", "M=8192")
    result = machine.ucc("build", LINEAR, "-s", "N=4096,K=4096", *shapes, "-o", folder, "--json")
    assert result.status == 0, result.err
    rows = result.json
    assert [row["sizes"]["M"] for row in rows] == [4096, 16, 8192]
    entries = {row["entry"] for row in rows}
    assert rows[0]["entry"] == rows[2]["entry"] and len(entries) == 2
    assert machine.builds == 2
    expected = {f"lib{e}.so" for e in entries} | {f"{e}.{end}" for e in entries for end in ("h", "cu")}
    assert {p.name for p in folder.iterdir()} == expected
    header = Path(rows[0]["header"]).read_text()
    assert "planned for 4096" in header and "for extents 8192, 4096, 4096: " in header
    lines = machine.ucc("build", LINEAR, "-s", "N=4096,K=4096", *shapes).out.splitlines()
    assert [line.split("\t")[:3] for line in lines] == [
        ["kernel", "sizes", "entry"],
        *(
            ["linear_gelu", f"M={m},K=4096,N=4096", row["entry"]]
            for m, row in zip((4096, 16, 8192), rows, strict=True)
        ),
    ]


def test_every_kernel_of_a_file_at_once(machine: Machine, write: Write) -> None:
    text = (
        "kernel a(x: f16[M, K], w: f16[N, K]) -> f16[M, N] { return dot[K](x, w) }\n"
        "kernel b(x: f16[M, K], w: f16[P, K]) -> f16[M, P] { return relu(dot[K](x, w)) }\n"
        "pipeline c(x: f16[M, K], w: f16[N, K]) -> f16[M, N] { return a(x, w) }\n"
    )
    path = write(text)
    rows = machine.ucc("build", path, "--all", "-s", "M=256,N=256,K=256,P=128", "--json").json
    assert [(row["kernel"], row["sizes"]) for row in rows] == [
        ("a", {"M": 256, "K": 256, "N": 256}),
        ("b", {"M": 256, "K": 256, "P": 128}),
    ]
    assert machine.builds == 2
    unknown = machine.ucc("build", path, "--all", "-s", "M=256,N=256,K=256,P=128,Z=1")
    assert (unknown.status, unknown.err) == (2, "ucc: no kernel of the file has a dimension Z [UC0601]\n")
    assert machine.ucc("build", path, "--all", "-k", "a").status == 2


def test_a_build_that_fails_stops_no_other(machine: Machine, write: Write) -> None:
    text = (
        "kernel a(x: f16[M, K], w: f16[N, K]) -> f16[M, N] { return dot[K](x, w) }\n"
        "kernel b(x: f16[M, K], w: f16[N, K]) -> f16[M, N] { return tanh(dot[K](x, w)) }\n"
    )
    refusing = 'if grep -q tanhf source.cu; then echo "source.cu(1): error: no" >&2; exit 2; fi'
    machine.behave(f"{refusing}\n: > kernel.so\n")
    result = machine.ucc("build", write(text), "--all", "-s", "M=256,N=256,K=256", "--json")
    assert result.status == 1
    good, bad = result.json
    assert Path(good["library"]).is_file() and "error" not in good
    assert bad["status"] == 1 and ":2: kernel b(" in bad["error"]


def test_a_refused_build_shows_the_program_first_and_keeps_the_source(machine: Machine) -> None:
    machine.behave('echo "source.cu(12): error: no instance of overloaded function" >&2; exit 2\n')
    result = machine.ucc("build", LINEAR, *SIZES)
    assert result.status == 1
    lines = result.err.splitlines()
    assert f"{LINEAR}:2" in lines[0] and "linear_gelu" in lines[0]
    words = next(i for i, line in enumerate(lines) if "no instance of overloaded function" in line)
    assert words > 0
    kept = next(line.split("source kept: ")[1] for line in lines if "source kept: " in line)
    assert 'extern "C"' in Path(kept).read_text()


@pytest.mark.parametrize("name", ["build", "run"])
def test_a_missing_compiler_is_one_line_with_the_mend(machine: Machine, name: str) -> None:
    result = machine.ucc(name, LINEAR, *SIZES, environ=NO_NVCC)
    assert result.status == 3
    assert result.out == ""
    assert result.err.startswith("ucc: ")
    assert "; to fix it: " in result.err
    assert result.err.count("\n") == 1


def test_a_missing_compiler_in_json(machine: Machine) -> None:
    result = machine.ucc("build", LINEAR, *SIZES, "--json", environ=NO_NVCC)
    assert result.status == 3
    assert result.json.keys() == {"error", "status"}
    assert result.json["status"] == 3


def test_check_and_emit_need_no_compiler(machine: Machine) -> None:
    assert machine.ucc("check", LINEAR, environ=NO_NVCC).status == 0
    assert machine.ucc("emit", LINEAR, *SIZES, environ=NO_NVCC).status == 0


@pytest.mark.parametrize(
    "output, words",
    [
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "signal 9"),
        ("g++: fatal error: No space left on device", "No space left on device"),
    ],
)
def test_a_compiler_that_the_machine_stops_is_one_line(machine: Machine, output: str, words: str) -> None:
    machine.behave(f'echo "{output}" >&2; exit 1\n')
    result = machine.ucc("build", LINEAR, *SIZES)
    assert result.status == 3
    assert words in result.err and "; to fix it: " in result.err
    assert result.err.count("\n") == 1


def test_a_cache_that_is_a_file_is_one_line(machine: Machine) -> None:
    machine.cache.write_text("not a folder")
    result = machine.ucc("build", LINEAR, *SIZES)
    assert result.status == 3
    assert str(machine.cache) in result.err and "; to fix it: " in result.err
    assert result.err.count("\n") == 1


def test_a_read_only_cache_is_one_line(machine: Machine) -> None:
    machine.cache.mkdir(mode=0o500)
    result = bound_by_modes(lambda: machine.ucc("build", LINEAR, *SIZES))
    assert result.status == 3
    assert "; to fix it: " in result.err
    assert result.err.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_one_line(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = machine.ucc("build", LINEAR, *SIZES, "-o", tmp_path / "file" / "folder")
    assert result.status == 3
    assert result.err == f"ucc: Not a directory: {tmp_path}/file/folder\n"


# --- cache --------------------------------------------------------------------------


def test_cache_lists_verifies_and_clears(machine: Machine) -> None:
    assert machine.ucc("cache", "list").out == "the cache is empty\n"
    entry = machine.ucc("build", LINEAR, *SIZES, "--json").json["entry"]
    (row,) = machine.ucc("cache", "list", "--json").json
    assert row["entry"] == entry and row["state"] == "ok" and row["arch"] == "sm_90a"
    (stats,) = machine.ucc("cache", "stats", "--json").json
    assert stats["entries"] == 1
    (row,) = machine.ucc("cache", "verify", "--json").json
    assert row["state"] == "ok"
    assert machine.ucc("cache", "clear").status == 0
    assert machine.ucc("cache", "list", "--json").json == []


def test_cache_verify_puts_a_corrupt_entry_aside(machine: Machine) -> None:
    library = Path(machine.ucc("build", LINEAR, *SIZES, "--json").json["library"])
    library.chmod(0o600)
    library.write_bytes(b"rot")
    result = machine.ucc("cache", "verify", "--json")
    assert [row["state"] for row in result.json] == ["corrupt"]
    assert machine.ucc("cache", "list", "--json").json == []
    assert machine.ucc("build", LINEAR, *SIZES).status == 0
    assert machine.builds == 2


# --- doctor -------------------------------------------------------------------------


def test_doctor_of_a_machine_that_can_build(machine: Machine) -> None:
    result = machine.ucc("doctor")
    assert result.status == 0
    assert "kernels can be built: yes" in result.out
    row = machine.ucc("doctor", "--json").json
    assert row["can_build"] is True
    assert all(f.keys() >= {"what", "state", "detail", "fix"} for f in row["findings"])


def test_doctor_names_what_is_missing_and_the_mend(machine: Machine) -> None:
    result = machine.ucc("doctor", environ=NO_NVCC)
    assert result.status == 3
    assert "missing\t" in result.out and "to fix it: " in result.out
    assert "kernels can be built: no" in result.out
    assert machine.ucc("doctor", "--json", environ=NO_NVCC).json["can_build"] is False


def test_timings_say_what_this_call_did_and_what_the_making_cost(machine: Machine) -> None:
    first, again = (machine.ucc("build", LINEAR, *SIZES, "--timings", "--json").json for _ in range(2))
    assert first["timings"]["made"]["here"] and not again["timings"]["made"]["here"]
    assert first["timings"]["made"]["seconds"] == again["timings"]["made"]["seconds"] == first["seconds"]
    always = {"front end", "planning", "emitting", "finding the tool chain", "cache look-up", "other"}
    assert again["timings"]["here"].keys() == always
    assert first["timings"]["here"].keys() == always | {"waiting for another build", "compiling and storing"}
    for one in (first, again):
        total = sum(one["timings"]["here"].values())
        assert abs(total - one["timings"]["seconds"]) < 1e-6 * (len(one["timings"]["here"]) + 1)  # rounding
    lines = machine.ucc("build", LINEAR, *SIZES, "--timings").out.splitlines()
    assert any(line.startswith("  planning\t") for line in lines)
    assert "timings" not in machine.ucc("build", LINEAR, *SIZES, "--json").json


@pytest.mark.parametrize("several", [("--all",), ("--shape", "M=512")])
def test_timings_look_at_one_kernel(machine: Machine, several: tuple[str, ...]) -> None:
    refused = machine.ucc("build", LINEAR, *SIZES, "--timings", *several)
    assert refused.status == 2 and "--timings looks at one kernel" in refused.err


@pytest.mark.parametrize(
    "command",
    [
        ("cache", "list"),
        ("cache", "stats"),
        ("cache", "verify"),
        ("cache", "clear"),
        ("results", "list"),
        ("results", "check"),
        ("results", "show", "0000"),
        ("sessions",),
        ("memory", "list"),
        ("profile", "--ledger"),
    ],
)
def test_a_file_in_place_of_a_folder(machine: Machine, command: tuple[str, ...]) -> None:
    for name in ("cache", "data"):
        (machine.home / name).write_text("in the way")
    result = machine.ucc(*command)
    assert result.status == 3
    assert "is not a folder, and a folder is needed there; to fix it: move it away, or set" in result.err


def test_verify_ends_with_1_where_it_found_corruption(machine: Machine) -> None:
    machine.behave("echo library > kernel.so\n")
    assert machine.ucc("build", LINEAR, *SIZES).status == 0
    assert machine.ucc("cache", "verify").status == 0
    (library,) = machine.cache.glob("entries/*/kernel.so")
    library.write_text("LIBRARY\n")
    result = machine.ucc("cache", "verify")
    assert result.status == 1 and "kernel.so has other content than was built" in result.out
    assert machine.ucc("cache", "verify").status == 0, "it was put aside"


def test_a_library_of_the_same_size_is_not_served(machine: Machine) -> None:
    machine.behave("echo library > kernel.so\n")
    assert machine.ucc("build", LINEAR, *SIZES).status == 0
    (library,) = machine.cache.glob("entries/*/kernel.so")
    library.write_text("LIBRARY\n")
    result = machine.ucc("build", LINEAR, *SIZES)
    assert result.status == 0 and machine.builds == 2
    assert library.read_text() == "library\n"


def test_a_cache_that_others_may_write_is_not_used(machine: Machine) -> None:
    machine.cache.mkdir()
    machine.cache.chmod(0o777)
    result = machine.ucc("build", LINEAR, *SIZES)
    assert result.status == 3 and machine.builds == 0
    assert "other users may write" in result.err and "chmod 700" in result.err


def test_a_cache_path_that_a_shell_would_read(machine: Machine) -> None:
    cache = str(machine.home / "$(touch pwned)")
    result = machine.ucc("build", LINEAR, *SIZES, environ={"UCUTLASS_CACHE_DIR": cache})
    assert result.status == 3 and "nvcc's shell" in result.err and "UCUTLASS_CACHE_DIR" in result.err
    assert machine.builds == 0


def test_an_output_folder_reaches_no_shell(machine: Machine) -> None:
    folder = machine.home / "$(touch pwned)"
    assert machine.ucc("build", LINEAR, *SIZES, "-o", folder).status == 0
    assert len(list(folder.iterdir())) == 3 and not list(machine.home.rglob("pwned"))
