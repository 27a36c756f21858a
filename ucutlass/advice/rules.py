"""The advice rules: one table, in the numbering of the research that they come from.

Sources: CUTLASS's code and documentation, threads with measurements, KernelPro (arXiv 2606.26453),
public rule engines. Where this project's own recording on an H200 (benchmarks/data/h200_bf16.json)
decided otherwise, the entry says so; docs/advice.md has the hit rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ucutlass.advice import epilogue, launch, mainloop, near, tiling, traffic
from ucutlass.advice.finding import AdviceRule, Bottleneck

_ALL: frozenset[Bottleneck] = frozenset({"multiplications", "memory", "latency", "launch"})
_BUSY: frozenset[Bottleneck] = frozenset({"multiplications", "memory", "latency"})
_MEMORY: frozenset[Bottleneck] = frozenset({"memory", "latency"})

_MODEL = " Ranges are the cost model's, with the band of the recorded pairs."

RULES: tuple[AdviceRule, ...] = (
    AdviceRule(
        1,
        "accumulator registers",
        "legality",
        ("analytic",),
        _ALL,
        "NVIDIA/cutlass issues 3372 and 2219. Decided by the legality rules: 208 accumulators a thread "
        "are the most that a kernel may hold; between 160 and 208 the cost model charges 15 % more a step.",
        None,
        ("UC0423", "UC0443"),
    ),
    AdviceRule(
        2,
        "wgmma serialised",
        "legality",
        ("build",),
        _ALL,
        "ptxas C7509 to C7518; NVIDIA/cutlass issues 1840 and 2452.",
        mainloop.serialised,
    ),
    AdviceRule(
        3,
        "spills",
        "legality",
        ("build", "counters"),
        _ALL,
        "KernelPro, its best tool. Shown with legality, since a spill is a broken promise of the plan.",
        mainloop.spills,
    ),
    AdviceRule(
        4,
        "wave quantisation",
        "quantisation",
        ("analytic",),
        _ALL,
        "CUTLASS tile_scheduler_params.h (stream-K where the tail is under half a wave and K is longer "
        "than 8 steps)." + _MODEL,
        tiling.wave_quantisation,
    ),
    AdviceRule(
        5,
        "clusters leave SMs idle",
        "quantisation",
        ("analytic", "counters"),
        _ALL,
        "CUTLASS get_max_cta_occupancy: 132, 116, 112 of 132 SMs for clusters of 2, 4, 8; NVIDIA/cutlass "
        "issue 1921." + _MODEL,
        tiling.idle_clusters,
    ),
    AdviceRule(
        6,
        "operands re-read from L2",
        "specific",
        ("analytic", "timing", "counters"),
        _BUSY,
        "Judgement; without counters L2's share is counted bytes over the fitted rate of 42 bytes a "
        "cycle and SM." + _MODEL,
        mainloop.multicast,
    ),
    AdviceRule(
        7,
        "too few stages",
        "specific",
        ("analytic", "counters"),
        _BUSY,
        "CUTLASS stage count; KernelPro WarpStall. Mended: aggregate stalls include the producer warp, which "
        "waits on every good Hopper kernel, so they speak only where stages are left to take. The cost model "
        "prices no stages; the range is Little's law.",
        mainloop.few_stages,
    ),
    AdviceRule(
        8,
        "stages capped",
        "specific",
        ("analytic",),
        _BUSY,
        "CUTLASS compute_stage_count_or_override, byte for byte. The epilogue's buffers are no schedule "
        "field, so the edits are smaller tiles.",
        mainloop.capped_stages,
    ),
    AdviceRule(
        9,
        "short main loop",
        "specific",
        ("analytic",),
        _BUSY,
        "CUTLASS; judgement (4 to 8 steps). Mended: belongs to memory-bound kernels too, whose worst "
        "recorded schedules split a short K." + _MODEL,
        mainloop.short_loop,
    ),
    AdviceRule(
        10,
        "epilogue exposed",
        "specific",
        ("analytic", "timing"),
        _BUSY,
        "CUTLASS pingpong. Without a timing of the bare kernel the share is the cost model's." + _MODEL,
        epilogue.exposed,
    ),
    AdviceRule(
        11,
        "tile too small for the roof",
        "specific",
        ("analytic", "counters"),
        frozenset({"multiplications"}),
        "NVIDIA/cutlass pull request 950; pytorch issue 153335." + _MODEL,
        mainloop.big_tile,
    ),
    AdviceRule(
        12,
        "skinny problem",
        "specific",
        ("analytic", "timing"),
        _MEMORY | frozenset({"launch"}),
        "NVIDIA/cutlass pull request 3373 (44 % won at M 16, 74 % at M 128) and issue 1139. Mended: what "
        "to do is the planner's whole choice, since swap, tile, split and the matrix-vector kernel "
        "compete; and it speaks of every skinny kernel below 70 % of the bandwidth, not only of those "
        "with fewer tiles than slots." + _MODEL,
        traffic.skinny,
    ),
    AdviceRule(
        13,
        "order of tiles",
        "specific",
        ("analytic", "counters"),
        frozenset({"multiplications", "memory"}),
        "CUTLASS get_rasterization_order; NVIDIA/cutlass pull request 3373. Mended: the cost model does "
        "not price the order, so without counters only a raster forced against CUTLASS's choice speaks.",
        traffic.order,
    ),
    AdviceRule(
        14,
        "alignment",
        "legality",
        ("analytic",),
        _ALL,
        "Decided by the legality rules on TMA alignment; the planner then takes the multistage kernel and "
        "`explain` says so.",
        None,
        ("UC0418", "UC0431"),
    ),
    AdviceRule(
        15,
        "operand order",
        "legality",
        ("analytic",),
        _ALL,
        "Decided by the legality rules on the order of fp8 and tf32 operands; the cost model charges "
        "tf32 across K for its way through registers or its turn in shared memory.",
        None,
        ("UC0415", "UC0416", "UC0417"),
    ),
    AdviceRule(
        16,
        "wrong unit multiplies",
        "class",
        ("analytic", "build", "counters"),
        _ALL,
        "KernelPro TensorCore; KernelAgent (5 %). On the H200 the multistage kernel took 1.4 to 4.2 "
        "times the best Hopper kernel's time." + _MODEL,
        mainloop.wrong_pipe,
    ),
    AdviceRule(
        17,
        "fp8 accumulation",
        "specific",
        ("analytic",),
        frozenset({"multiplications"}),
        "CUTLASS GmmaFP8Accumulation; NVIDIA/cutlass issue 1329.",
        launch.fp8_accumulation,
    ),
    AdviceRule(
        18,
        "at the memory's roof",
        "class",
        ("timing", "counters"),
        frozenset({"memory"}),
        "KernelPro (80 %), KernelAgent (95 %): taken as 90 % of what a copy reaches here.",
        traffic.at_the_roof,
    ),
    AdviceRule(
        19,
        "excess traffic",
        "specific",
        ("analytic", "counters"),
        frozenset({"multiplications", "memory"}),
        "KernelPro. Without counters the bytes are the cost model's, and only where they take half the "
        "time." + _MODEL,
        traffic.excess,
    ),
    AdviceRule(
        20,
        "too little at work",
        "class",
        ("analytic", "timing", "counters"),
        frozenset({"latency"}),
        "NVIDIA's rule constant of 60 % for both limits." + _MODEL,
        tiling.too_little_at_work,
    ),
    AdviceRule(
        21,
        "launch",
        "class",
        ("analytic", "timing"),
        _ALL,
        "KernelPro (20 % of a call). Without a wall clock it speaks where the device table's launch "
        "floor is half of the estimate: below that the kernel still has time to win.",
        launch.launch_bound,
    ),
    AdviceRule(
        22,
        "padding",
        "quantisation",
        ("analytic",),
        _ALL,
        "PTX ISA wgmma shapes; NVIDIA/cutlass issue 2219." + _MODEL,
        tiling.padding,
    ),
    AdviceRule(
        23,
        "special functions",
        "specific",
        ("analytic", "counters"),
        _BUSY,
        "KernelAgent (60 %, tensor 20 to 80 %). Without counters the share is the cost model's.",
        epilogue.special_functions,
    ),
    AdviceRule(
        24,
        "narrow side path",
        "specific",
        ("analytic", "build", "counters"),
        _MEMORY,
        "KernelPro. No schedule field changes how an epilogue tensor lies in memory, so this is said in "
        "words.",
        epilogue.side_path,
    ),
    AdviceRule(
        25,
        "shared-memory conflicts",
        "specific",
        ("counters",),
        _BUSY,
        "Judgement (10 %); wgmma's operands do not pass the counted path.",
        epilogue.bank_conflicts,
    ),
    AdviceRule(
        26,
        "imbalance",
        "specific",
        ("counters",),
        _ALL,
        "CUTLASS grouped scheduler. Mended: no family has groups of unequal size yet, so this is what the "
        "hardware sees of unequal SMs." + _MODEL,
        tiling.imbalance,
    ),
    AdviceRule(
        27,
        "schedule legality",
        "legality",
        ("analytic",),
        _ALL,
        "Decided by the legality rules on tiles, clusters, stages and stream-K.",
        None,
        ("UC0419", "UC0420", "UC0421", "UC0424", "UC0425", "UC0426", "UC0427", "UC0428"),
    ),
    AdviceRule(
        28,
        "power",
        "tie",
        ("timing",),
        frozenset({"multiplications"}),
        "CUTLASS methodology page; NVIDIA/cutlass pull request 3373.",
        launch.power_limited,
    ),
    AdviceRule(
        29,
        "energy",
        "tie",
        ("timing",),
        _ALL,
        "KernelPro; windows of 2 s, since the sensor samples only a part of the time.",
        launch.less_energy,
    ),
)

NEAR = AdviceRule(
    30,
    "schedules next to it",
    "tie",
    ("analytic", "timing"),
    _ALL,
    "Of families whose cost model does not tell schedules apart: the range is a judgement.",
    near.schedules_nearby,
)
"""The rule that speaks where no other has an edit."""

BY_NUMBER: Mapping[int, AdviceRule] = MappingProxyType({rule.number: rule for rule in (*RULES, NEAR)})
