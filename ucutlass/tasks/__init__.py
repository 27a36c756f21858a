"""Subprocess tasks: functions that run in processes of their own, on the GPU or the CPU.

Each module holds functions for `ucutlass.runtime.isolation`: JSON values in, JSON values out, and
imports of torch inside the functions.
"""
