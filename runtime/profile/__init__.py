"""Observes a kernel on a GPU beyond its time: hardware counters, machine code, energy, and the ledger of
edits.

tools       where ncu and cuobjdump are
metrics     counters by architecture: our names, Nsight Compute's names
ncu         runs Nsight Compute on a command and reads what it writes
sass        reads the disassembly of a built library
energy      joules a launch from NVML's counter
ledger      what advice promised, and what it brought
"""
