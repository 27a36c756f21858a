"""Maps the fields of `advice.Counters` to Nsight Compute's metrics, by architecture.

A field is the sum of its metrics; None where the architecture has no such counter, which stays
unknown. Names for sm90 are those that Nsight Compute 2025.4 and 2026.1 list for gh100; several
well-known ones do not exist there (`dram__throughput`) or read zero for wgmma
(`sm__ops_path_tensor_op_hmma_*`), and are not used. Names for sm100 are those listed for B200;
sm80 and sm89 take the names that the Nsight Compute documentation gives for GA100 and later.
`python -m benchmarks.advice --query` checks a table against the tool at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TypeAlias

from ucutlass.advice import Counters

MetricNames: TypeAlias = tuple[str, ...] | None

_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
_ACTIVE = ".avg.pct_of_peak_sustained_active"
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"

_COMMON: Mapping[str, MetricNames] = {
    "tensor": ("sm__pipe_tensor_cycles_active" + _ELAPSED,),
    "tensor_active": ("sm__pipe_tensor_cycles_active" + _ACTIVE,),
    "fma": ("sm__inst_executed_pipe_fma" + _ACTIVE,),
    "xu": ("sm__inst_executed_pipe_xu" + _ACTIVE,),
    "sm": ("sm__throughput" + _ELAPSED,),
    "memory": ("gpu__compute_memory_throughput" + _ELAPSED,),
    "dram": (
        "dram__bytes_read.sum.pct_of_peak_sustained_elapsed",
        "dram__bytes_write.sum.pct_of_peak_sustained_elapsed",
    ),
    "dram_bytes": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "l2": ("lts__throughput" + _ELAPSED,),
    "l2_hit": ("lts__t_sector_hit_rate.pct",),
    "tma_bytes": None,
    "local_accesses": ("smsp__inst_executed_op_local_ld.sum", "smsp__inst_executed_op_local_st.sum"),
    "load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "load_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",),
    "shared_conflicts": (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    ),
    "shared_wavefronts": (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    ),
    "stall_barrier": (_STALL.format("barrier"),),
    "stall_long_scoreboard": (_STALL.format("long_scoreboard"),),
    "stall_short_scoreboard": (_STALL.format("short_scoreboard"),),
    "stall_gmma": None,
    "stall_total": ("smsp__average_warp_latency_per_inst_issued.ratio",),
    "clusters_active": None,
    "sm_cycles_most": ("sm__cycles_active.max",),
    "sm_cycles_mean": ("sm__cycles_active.avg",),
    "seconds": ("gpu__time_duration.sum",),
}

_SASS_LOCAL: MetricNames = (
    "smsp__sass_inst_executed_op_local_ld.sum",
    "smsp__sass_inst_executed_op_local_st.sum",
)

_CLUSTERS: Mapping[str, MetricNames] = {
    "local_accesses": _SASS_LOCAL,
    "tma_bytes": ("l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",),
    "clusters_active": ("launch__cluster_max_active",),
}

METRICS: Mapping[str, Mapping[str, MetricNames]] = MappingProxyType(
    {
        "sm80": MappingProxyType({**_COMMON}),
        "sm89": MappingProxyType({**_COMMON}),
        "sm90": MappingProxyType({**_COMMON, **_CLUSTERS, "stall_gmma": (_STALL.format("gmma"),)}),
        "sm100": MappingProxyType({**_COMMON, **_CLUSTERS}),
    }
)

CHIPS: Mapping[str, str] = MappingProxyType(
    {"sm80": "ga100", "sm89": "ad102", "sm90": "gh100", "sm100": "gb100"}
)
"""Nsight Compute's names of the chips (`ncu --list-chips`), for `--query-metrics --chip`."""

_CAPABILITIES: Mapping[tuple[int, int], str] = MappingProxyType(
    {(8, 0): "sm80", (8, 9): "sm89", (9, 0): "sm90", (10, 0): "sm100"}
)


def table_for(capability: tuple[int, int]) -> str | None:
    """Returns the table of a GPU; None where none was written for it."""
    return _CAPABILITIES.get(capability)


def metric_names(table: str) -> tuple[str, ...]:
    """Returns every metric of a table, once."""
    return tuple(dict.fromkeys(name for names in METRICS[table].values() for name in names or ()))


def counters(table: str, values: Mapping[str, float | None]) -> Counters:
    """Returns the counters that metric values stand for. Percentages come as fractions, times in seconds
    (`ncu.parse` does that). A field with a metric missing is unknown."""
    by_field: dict[str, float | None] = {}
    for name, metrics in METRICS[table].items():
        parts = [values.get(metric) for metric in metrics or ()]
        measured = [p for p in parts if p is not None]
        by_field[name] = sum(measured) if parts and len(measured) == len(parts) else None
    return Counters(**by_field)


def unknown(measured: Counters) -> tuple[str, ...]:
    """Returns the fields that have no value, in the table's order."""
    return tuple(f.name for f in fields(Counters) if getattr(measured, f.name) is None)
