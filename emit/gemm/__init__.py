"""The emitters of GEMM and their templates."""
