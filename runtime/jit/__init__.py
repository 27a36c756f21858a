"""Kernels built in stages: a skeleton once, its epilogue's arithmetic in milliseconds, then a link."""
