"""This module gives the CUDA file of a candidate: what its program is emitted as, or the source that stands for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ucutlass import ir
from ucutlass.agent.outcome import RefusedOutcome
from ucutlass.agent.problem import OptimizationProblem, ProgramCandidate, candidate_of
from ucutlass.agent.tree import CandidateNode
from ucutlass.backend import source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import NotServed
from ucutlass.emit.text import Source
from ucutlass.frontend import plan_kernel
from ucutlass.ir.hardware import Device
from ucutlass.shapes import ShapeError, complete


@dataclass(frozen=True, slots=True)
class CandidateFile:
    """Describes the CUDA of a candidate without the comment that an emitted file begins with. `absent` says why
    there is none: it is a pipeline, or f32 by wgmma, which no one file stands for."""

    text: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True)
class CandidateFiles:
    """Gives the files of a problem's candidates. `headers` is the folder of the headers that they include, of the
    package's `version`."""

    problem: OptimizationProblem
    device: Device | None
    headers: Path
    version: str = ""

    def of(self, node: CandidateNode) -> CandidateFile:
        """Returns the file of a candidate: its own source, or what its program is emitted as."""
        if node.source:
            return CandidateFile(node.source)
        candidate = (
            candidate_of(self.problem, node.text) if node.text else RefusedOutcome("it has no program")
        )
        if isinstance(candidate, RefusedOutcome):
            return CandidateFile(absent=candidate.words[:300])
        try:
            return CandidateFile(emitted_source(candidate, self.problem.arch, self.device).code)
        except (NotServed, ProgramError, ShapeError) as failure:
            return CandidateFile(absent=str(failure)[:300])


def emitted_source(candidate: ProgramCandidate, arch: str, device: Device | None) -> Source:
    """Returns what a kernel is emitted as for the problem's extents. Raises NotServed for what one file does not
    stand for, ProgramError, ShapeError."""
    if not isinstance(candidate.program, ir.Kernel):
        raise NotServed("a pipeline is several kernels, and a source stands for one")
    extents = complete(candidate.program, candidate.sizes)
    planned = plan_kernel(candidate.checked, candidate.program, extents, arch, device).planned
    emitted = source_of(candidate.checked, candidate.program, planned)
    if emitted.in_parts:
        raise NotServed("f32 by wgmma is built in parts, which no one file stands for")
    return emitted
