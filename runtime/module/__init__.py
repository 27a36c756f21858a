"""PyTorch modules, counted: a problem file's graph, exported in a process of its own, and its work.

`export` runs there and makes the `graph`; the rest is pure and reads that graph: `regions` says what of
a tensor is needed, `operators` and `count` what each operator costs, `conditions` what a kernel
could skip, and `work` adds it up.
"""
