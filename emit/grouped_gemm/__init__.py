"""The emitters of grouped GEMM and their templates."""
