"""Kernel plans to CUTLASS C++."""
