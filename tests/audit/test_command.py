"""`ucc audit` from the store to the exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.audit.producers import bench, subject, verified, without
from ucutlass import frontend
from ucutlass.cli import main
from ucutlass.ir.hardware import DEVICES
from ucutlass.runtime import calibrate, isolation
from ucutlass.runtime.evidence import RecordSubject, sealed
from ucutlass.runtime.store import EvidenceStore
from ucutlass.sol.ceilings import Ceilings
from ucutlass.tasks.audit import probe

SIZES = {"M": 2048, "N": 2048, "K": 2048}
BOUND = 2 * 2048**3 / DEVICES["H200"].peaks["f16"] * 1e6
"""Microseconds: 17.4."""

TEXT = """kernel linear(x: bf16[M, K], w: bf16[N, K], b: f32[N]) -> f32[M, N] {
  return relu(dot[K](x, w) + b)
}
"""
CONSTANT = """kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] {
  d = dot[K](tf32(x), tf32(w))
  return d * 0.0 + 1.0
}
"""
CHAIN = """pipeline chain(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] {
  h: bf16[M, N] = dot[K](x, w) + b
  return softmax[N](h)
}
"""

Audit = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EvidenceStore:
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "data"))
    return EvidenceStore.open()


@pytest.fixture(autouse=True)
def in_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is asked in this process, but for the test that asks as the command does."""

    def run(target: str, arguments: dict[str, Any], **_: object) -> isolation.CallOutcome:
        assert target == "ucutlass.tasks.audit:probe"
        return isolation.Returned(probe(**arguments), "")

    if request.node.name != "test_without_evidence_nothing_is_proven":
        monkeypatch.setattr(isolation, "run", run)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "linear.ucu"
    path.write_text(TEXT)
    return path


@pytest.fixture
def audit(store: EvidenceStore, file: Path) -> Audit:
    def run(*more: str, sizes: str = "M=2048,N=2048,K=2048", path: Path = file) -> Result:
        return CliRunner().invoke(main, ["audit", str(path), "-s", sizes, *more])

    return run


def of(text: str = TEXT) -> RecordSubject:
    return subject(frontend.read_text(text), SIZES)


def keep(store: EvidenceStore, us: float, **more: Any) -> list[str]:
    kernel = frontend.kernel(frontend.read_text(TEXT))
    return [store.add(bench(of(), us, **more)), store.add(verified(of(), kernel))]


def answer(result: Result) -> dict[str, Any]:
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def test_honest_evidence_is_accepted_and_the_verdict_kept(store: EvidenceStore, audit: Audit) -> None:
    ids = keep(store, 1.5 * BOUND)
    result = audit("--json", "--compute-type", "bf16")
    values = answer(result)
    assert (values["verdict"], values["findings"], result.exit_code) == ("ok", [], 0)
    kept = store.get(values["record"])
    assert kept.kind == "audit" and kept.parents == tuple(ids) and kept.result["verdict"] == "ok"
    assert kept.protocol["lane"] == "bf16" and len(kept.protocol["rules"]) == 12


def test_a_pipeline_is_compared_with_the_code_of_its_stages(
    store: EvidenceStore, audit: Audit, tmp_path: Path
) -> None:
    path = tmp_path / "chain.ucu"
    path.write_text(CHAIN)
    checked = frontend.read_text(CHAIN)
    of_chain = subject(checked, SIZES)
    store.add(bench(of_chain, 3 * BOUND))
    store.add(verified(of_chain, frontend.program(checked)))
    accepted = answer(audit("--json", path=path))
    assert (accepted["verdict"], accepted["findings"]) == ("ok", [])
    changed = replace(of_chain, source="0" * 64)
    store.add(bench(changed, 3 * BOUND))
    refused = answer(audit("--json", path=path))
    assert {f["rule"] for f in refused["findings"]} == {"artefact"}, refused


def test_without_evidence_nothing_is_proven(audit: Audit) -> None:
    result = audit()
    assert result.exit_code == 1
    assert "there is no bench record" in result.stdout and "run `ucc verify`" in result.stdout
    assert "verdict\tunproven" in result.stdout


def test_evidence_of_other_extents_is_none(store: EvidenceStore, audit: Audit) -> None:
    ids = keep(store, 1.5 * BOUND)
    assert answer(audit("--json", sizes="M=64,N=64,K=64"))["verdict"] == "unproven"
    result = audit("--record", ids[0][:12], sizes="M=64,N=64,K=64")
    assert "is of another text or of other extents" in result.stdout and result.exit_code == 1


def test_a_verdict_is_of_the_candidate_whatever_records_are_named(store: EvidenceStore, audit: Audit) -> None:
    strange = store.add(bench(subject(frontend.read_text(TEXT), {**SIZES, "M": 64}), 1.0))
    ids = keep(store, 1.5 * BOUND)
    named = [word for one in (strange, *ids) for word in ("--record", one)]
    kept = store.get(answer(audit("--json", *named))["record"])
    assert dict(kept.subject.sizes) == SIZES


def test_a_suite_of_zeros_alone_proves_nothing(store: EvidenceStore, audit: Audit) -> None:
    keep(store, 1.5 * BOUND)
    store.add(verified(of(), frontend.kernel(frontend.read_text(TEXT)), distributions=("zeros",)))
    (finding,) = answer(audit("--json"))["findings"]
    assert (finding["verdict"], finding["rule"]) == ("unproven", "correct")


def test_words_of_a_record_begin_no_row_and_move_no_cursor(store: EvidenceStore, audit: Audit) -> None:
    kernel = frontend.kernel(frontend.read_text(TEXT))
    one = verified(of(), kernel)
    result = {**one.result, "ok": False, "failures": ["\x1b[2Jx\nverdict\tok"]}
    store.add(sealed(replace(one, result=result, id="")))
    stdout = audit().stdout
    assert "\x1b" not in stdout and "verdict\tok" not in stdout and "\\x1b[2Jx; verdict" in stdout


def test_a_damaged_store_is_told_in_words(store: EvidenceStore, audit: Audit) -> None:
    store.path.parent.mkdir(parents=True)
    store.path.write_bytes(b"no database" * 1000)
    result = audit("--json")
    assert answer(result)["verdict"] == "unproven"
    assert result.stderr.startswith("ucc: the evidence store") and ".py:" not in result.stderr


def test_a_time_below_the_bound(store: EvidenceStore, audit: Audit) -> None:
    ids = keep(store, 0.8 * BOUND)
    result = audit("--json")
    (finding,) = answer(result)["findings"]
    assert (finding["verdict"], finding["rule"], finding["records"]) == ("below-sol", "below-sol", [ids[0]])
    assert result.exit_code == 1


def test_the_last_cold_time_is_judged(store: EvidenceStore, audit: Audit) -> None:
    keep(store, 0.5 * BOUND)
    keep(store, 1.5 * BOUND)
    keep(store, 0.5 * BOUND, regime="warm")
    assert answer(audit("--json"))["verdict"] == "ok"


def test_a_trick_that_the_bench_caught(store: EvidenceStore, audit: Audit) -> None:
    keep(store, 0.0, trick=True)
    values = answer(audit("--json"))
    assert values["verdict"] == "gaming" and "off-stream" in values["findings"][0]["words"]


def test_a_lower_compute_type_than_declared(store: EvidenceStore, audit: Audit) -> None:
    keep(store, 1.5 * BOUND)
    values = answer(audit("--json", "--lane", "f32"))
    assert (values["verdict"], values["findings"][0]["rule"]) == ("gaming", "lane")


def test_the_library_that_is_kept(store: EvidenceStore, audit: Audit, tmp_path: Path) -> None:
    keep(store, 1.5 * BOUND)
    library = tmp_path / "kernel.so"
    library.write_bytes(b"another")
    values = answer(audit("--json", "--library", str(library)))
    assert (values["verdict"], values["findings"][0]["rule"]) == ("gaming", "artefact")


def test_a_rejected_ancestor(store: EvidenceStore, audit: Audit) -> None:
    keep(store, 0.5 * BOUND)
    parent = answer(audit("--json"))["record"]
    keep(store, 1.5 * BOUND)
    assert answer(audit("--json"))["verdict"] == "ok"
    values = answer(audit("--json", "--ancestor", parent[:16]))
    assert (values["verdict"], values["findings"][0]["rule"]) == ("gaming", "ancestors")


def test_a_field_that_is_missing(store: EvidenceStore, audit: Audit) -> None:
    keep(store, 1.5 * BOUND)
    broken = store.add(without(bench(of(), 1.5 * BOUND), "outcomes", "0", "span"))
    values = answer(audit("--json"))
    assert values["verdict"] == "unproven" and broken[:12] in values["findings"][0]["words"]


def test_a_calibrated_ceiling_is_told_apart(store: EvidenceStore, audit: Audit) -> None:
    keep(store, 1.1 * BOUND)
    slow = Ceilings("NVIDIA H200", "GPU-0", {"bf16": 6e14}, 3e12, 4e12, 8e12, 2e-6, 1.83e9)
    calibrate.save(calibrate.Calibration(slow, {}, {}, (), ()))
    values = answer(audit("--json"))
    assert values["verdict"] == "minor" and "calibrate again" in values["findings"][0]["words"]


def test_a_problem_whose_answer_is_constant(audit: Audit, tmp_path: Path) -> None:
    path = tmp_path / "constant.ucu"
    path.write_text(CONSTANT)
    values = answer(audit("--json", path=path))
    assert values["verdict"] == "flawed-problem"
    assert {f["rule"] for f in values["findings"]} == {"insensitive", "evidence", "lane"}


def test_the_algebra_between_a_problem_and_a_program_is_named(audit: Audit, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("problem.ucu", "program.ucu", "other.ucu")]
    head = "kernel k(x: f32[M, N], y: f32[M]) -> f32[M] { return "
    for path, value in zip(
        paths, ("sum[N](x * y)", "sum[N](x) * y", "sum[N](clamp(x, -9.0, 9.0)) * y"), strict=True
    ):
        path.write_text(f"{head}{value} }}")
    by = [
        answer(audit("--json", "--problem", str(paths[0]), sizes="M=64,N=64", path=p))["algebra"]
        for p in paths
    ]
    assert by[0] == "equal for all inputs: the same values"
    assert by[1] == "equal for all inputs: factor of a sum"
    assert by[2].startswith("no rules show")


def test_library_work(audit: Audit, tmp_path: Path) -> None:
    path = tmp_path / "library.ucu"
    path.write_text(
        "pipeline p(x: f16[M, K], w: f16[K, N]) -> f16[M, N] {\n"
        "  h: f16[M, N] = torch.matmul(x, w)\n  return relu(h)\n}\n"
    )
    assert answer(audit("--json", path=path))["verdict"] == "library-only"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--lane", "f17"), "is no compute type"),
        (("--compute-type", "bf16/f16"), "does not accumulate in"),
        (("--record", "abcdef"), "no record in"),
        (("--record", "no/../id"), "is no id"),
        (("--kernel", "other"), "say which one"),
    ],
)
def test_mistakes_of_the_call(audit: Audit, store: EvidenceStore, more: tuple[str, ...], words: str) -> None:
    keep(store, 1.5 * BOUND)
    result = audit(*more)
    assert result.exit_code == 2 and words in result.stderr
