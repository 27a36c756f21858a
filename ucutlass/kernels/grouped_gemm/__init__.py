"""Grouped, dual and blockwise-scaled GEMM: one or two dots over one left operand, over ragged groups or not."""
