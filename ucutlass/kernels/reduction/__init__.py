"""Reductions, scans, windows and pointwise kernels: programs without a dot."""
