"""Measures the device time of kernels with clocks, cache regimes, a protocol, baselines and a lock per GPU.

    gpu_lock    one comparison at a time on a GPU, between processes
    eager       the typed program as a PyTorch user would write it
    baselines   eager, compiled, cuBLAS; workload: the buffers that all share
    regimes     how many buffer sets rotate, and fresh content for each
    protocol    every number of the protocol, and what makes a block comparable
    gpu         what `measure` asks of a device; `cuda` answers on an NVIDIA GPU
    prepare     a candidate called, audited, captured and validated before anything is timed
    measure     a comparison: warm up, interleave, validate, stop
    outcome     what is timed and what came of it
    trace, spans    device events of CUPTI, and which iteration each belongs to
    clocks      three clocks against one another
    frequency, nvml the SM clock inside the window, and what held it down
    report      what a measurement says: ratios with intervals, verdicts, findings

Whatever can be decided without a device is a pure function; `cuda` and `nvml` alone touch one.
"""
