from __future__ import annotations

from ucutlass.runtime import ptxas

LOG = """\
source.cu(3): warning #177-D: variable "x" was declared but never referenced
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4goodv' for 'sm_90a'
ptxas info    : Function properties for _Z4goodv
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 8 barriers, 8 bytes cumulative stack size, 1040 bytes smem
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to \
insufficient register resources for the wgmma pipeline in the function '_Z3badv'
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; \
unable to determine register count at entry.
ptxas info    : Compiling entry function '_Z3badv' for 'sm_90a'
ptxas info    : Function properties for _Z3badv
    408 bytes stack frame, 552 bytes spill stores, 600 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
ptxas warning : Unresolved extern variable 'v' in whole program compilation, ignoring extern qualifier
ptxas info    : Compile time = 2.1 ms
"""


def test_usage_of_every_kernel() -> None:
    good, bad = ptxas.parse(LOG).usage
    assert good == ptxas.KernelResources("_Z4goodv", "sm_90a", 168, 8, 0, 0, 1040, 8)
    assert bad == ptxas.KernelResources("_Z3badv", "sm_90a", 255, 408, 552, 600, 0, 1)


def test_findings_name_kernel_code_and_numbers() -> None:
    by_code = {f.code: f for f in ptxas.parse(LOG).findings}
    assert set(by_code) == {"spill", "wgmma-serialised", "setmaxnreg-ignored", "ptxas"}
    assert by_code["spill"].kernel == "_Z3badv" and "552" in by_code["spill"].message
    assert by_code["wgmma-serialised"].kernel == "_Z3badv"
    assert by_code["wgmma-serialised"].message.startswith("C7511")
    assert by_code["setmaxnreg-ignored"].kernel == ""
    assert all(f.hint for f in by_code.values())


def test_a_clean_log_has_no_findings() -> None:
    assert ptxas.parse(LOG.partition("(C7511)")[0]).findings == ()
    assert ptxas.parse("nothing of ptxas: wgmma serialized") == ptxas.PtxasReport()


def test_a_stack_without_spills_is_reported() -> None:
    log = LOG.replace("552 bytes spill stores, 600", "0 bytes spill stores, 0")
    assert "stack" in {f.code for f in ptxas.parse(log).findings if f.kernel == "_Z3badv"}


def test_json_round_trip() -> None:
    report = ptxas.parse(LOG)
    assert ptxas.PtxasReport.from_json(report.to_json()) == report
