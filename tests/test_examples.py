"""The examples: canonical, and taken by every stage up to the emitted source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer

from ucutlass import frontend, ir
from ucutlass.agent.journal import Journal
from ucutlass.agent.session import replay_events
from ucutlass.backend import source_of
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import grammar_text, parse
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.shapes import complete, free_dims, parse_sizes

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.ucu"))

SIZES = {
    "batched": "S=512,B=4,K=128,N=256,H=2,L=512,D=64",
    "cross_entropy": "T=4096,V=32000",
    "cumsum": "A=128,L=4096,C=512",
    "embedding": "V=50257,D=1024,B=8,L=512",
    "fp8_amax": "M=512,N=1024,K=256",
    "layer_norm": "T=16384,D=4096",
    "linear_gelu": "M=4096,N=4096,K=4096",
    "matvec": "M=4096,K=8192",
    "mlp": "T=4096,D=1024,F=4096",
    "pooling": "N=16,C=64,H=112,W=112",
    "precision": "M=256,N=256,K=256",
    "project_heads": "B=2,L=512,K=1024",
    "residual_relu": "M=2048,N=1024,K=512",
    "softmax": "T=4096,D=4096,N=16,C=64,H=56,W=56",
    "statistics": "M=512,N=512,K=512",
}
"""Extents of the free dimensions; every kernel of a file takes its own of them."""


@pytest.mark.slow
def test_the_session_by_hand_runs_without_a_gpu(tmp_path: Path) -> None:
    script = EXAMPLES[0].with_name("ask_tell.py")
    journal = tmp_path / "sessions.sqlite"
    ran = subprocess.run(
        [sys.executable, str(script), str(journal)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ran.returncode == 0, ran.stderr
    (id,) = Journal(journal).sessions()
    state = replay_events(Journal(journal).events(id))
    assert len(state.tree) == 9 == state.spend.attempts + 1, "by one who stopped and one who went on"
    own, best = state.tree[0], state.tree.best()
    assert best is not None and best.seconds is not None and own.seconds is not None
    assert best.seconds < own.seconds and best.text in ran.stdout
    assert f"by estimate alone the best of 9 is {best.id}:" in ran.stdout


def test_every_example_has_sizes() -> None:
    assert set(SIZES) == {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
class TestExample:
    def test_is_in_canonical_form(self, path: Path) -> None:
        assert format_file(parse(path.read_text())) == path.read_text()

    def test_begins_with_a_comment_that_says_what_it_is(self, path: Path) -> None:
        assert path.read_text().startswith("# ")

    def test_is_accepted_by_constrained_decoding(self, path: Path) -> None:
        tokenizer = LLTokenizer("byte")
        matcher = LLMatcher(tokenizer, str(LLMatcher.grammar_from_lark(grammar_text())))
        tokens = tokenizer.tokenize_str(path.read_text())
        assert matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    @pytest.mark.parametrize("arch", ["sm90a", "sm80"])
    def test_checks_plans_and_emits(self, path: Path, arch: str) -> None:
        checked = frontend.read(path)
        for program in checked.module.programs:
            if isinstance(program, ir.Pipeline):
                extents = complete(program, parse_sizes([SIZES[path.stem]]))
                stages = plan_pipeline(checked, program, extents, arch).stages
                assert all(s.chosen is not None for s in stages)
                continue
            kernel = frontend.kernel(checked, program.name)
            assert not frontend.check_schedules(checked, kernel)
            values = parse_sizes([SIZES[path.stem]])
            sizes = complete(kernel, {name: values[name] for name in free_dims(kernel)})
            chosen = frontend.plan_kernel(checked, kernel, sizes, arch)
            source = source_of(checked, kernel, chosen.planned)
            assert f" {source.entry}(" in source.code
            assert source.arch == f"sm_{arch.removeprefix('sm')}"
