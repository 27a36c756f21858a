"""GEMM: one dot of two stored operands, batched, with a fused epilogue."""
