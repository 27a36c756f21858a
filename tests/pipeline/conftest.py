"""Pipelines whose kernels run on the host, launched both ways, on streams that only write things down."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.host_library import host_library
from ucutlass import frontend, ir
from ucutlass.pipeline.sized import sized_pipeline
from ucutlass.pipeline.workspace import streams_of
from ucutlass.runtime import launch
from ucutlass.runtime import side_streams as beside
from ucutlass.runtime.direct_launch import rebind
from ucutlass.runtime.launch import BoundKernel, Launcher, LaunchRequest
from ucutlass.runtime.launch_sequence import LaunchSequence
from ucutlass.runtime.launch_spec import spec_of
from ucutlass.runtime.library import Native, NoNative, load_entry
from ucutlass.runtime.pipeline import sequence_of
from ucutlass.runtime.side_streams import Branches

LAUNCH, RECORD, WAIT = 1, 2, 3
FIRST_EVENT = 100
"""Fake events are numbers from here on; side streams are 1, 2, ..; the caller's is 0."""


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of the entries in fake_stages.c."""
    return host_library(Path(__file__).with_name("fake_stages.c"), tmp_path_factory.mktemp("stages"))


@dataclass
class Loaded:
    """A pipeline that can be called: what was planned for each request, and what its calls did."""

    call: Launcher
    library: ctypes.CDLL
    series: dict[LaunchRequest, LaunchSequence] = field(default_factory=dict)

    def trace(self) -> list[tuple[int, int, int, int]]:
        """What happened since it was last asked: (what, number or event, stream, workspace)."""
        count = ctypes.c_int64.in_dll(self.library, "traced")
        numbers = list((ctypes.c_int64 * 4096).in_dll(self.library, "trace")[: count.value])
        count.value = 0
        return [tuple(numbers[i : i + 4]) for i in range(0, len(numbers), 4)]  # type: ignore[misc]


Load = Callable[..., Loaded]


@pytest.fixture
def load(stages: Path, route: Native | NoNative, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a pipeline whose kernels are fakes: the entry is `two` for two tensors, else `add`; the first
    launch parameter is the stage's number. `workspaces` and `codes` are by stage."""
    library = ctypes.PyDLL(str(stages))

    def fakes(device: torch.device, main: int, streams: int, events: int) -> Branches:
        record, wait = (
            ctypes.cast(getattr(library, n), ctypes.c_void_p).value for n in ("fake_record", "fake_wait")
        )
        assert record is not None and wait is not None
        ctypes.c_int32.in_dll(library, "has_context").value = 1
        return Branches(tuple(range(streams)), tuple(FIRST_EVENT + i for i in range(events)), (record, wait))

    monkeypatch.setattr(beside, "branches", fakes)
    monkeypatch.setattr(launch, "branches", fakes)

    def make(
        text: str, workspaces: Mapping[int, int] = {}, codes: Mapping[int, int] = {}, most_streams: int = 4
    ) -> Loaded:
        pipeline = frontend.program(frontend.read_text(text))
        assert isinstance(pipeline, ir.Pipeline)

        def choose(request: LaunchRequest) -> LaunchSequence:
            sized = sized_pipeline(pipeline, request.extents)
            bounds: list[BoundKernel | None] = []
            for i, step in enumerate(sized.steps):
                if step.kernel is None:
                    bounds.append(None)
                    continue
                tensors = sum(isinstance(p.type, ir.TensorType) for p in step.kernel.params)
                entry = load_entry(stages, "two" if tensors == 2 else "add")
                launch_parameters = (i, workspaces.get(i, 0), codes.get(i, 0))
                bound = BoundKernel(entry.address, launch_parameters, 0, entry)
                bounds.append(rebind(spec_of(step.kernel, device="cpu"), bound, step.sizes, request.device))
            loaded.series[request] = sequence_of(sized, streams_of(sized, most_streams), bounds)
            return loaded.series[request]

        loaded = Loaded(Launcher(spec_of(pipeline, device="cpu"), choose, route), library)
        loaded.trace()
        return loaded

    return make


def numbers(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
