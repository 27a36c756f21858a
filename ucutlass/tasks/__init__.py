"""What runs in a process of its own, on the GPU or the CPU, for the command line.

Each module holds functions for `ucutlass.runtime.isolation`: JSON values in, JSON values out, and
imports of torch inside the functions.
"""
