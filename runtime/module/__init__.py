"""Counts the work of PyTorch modules: a problem file is exported in a process of their own and counts the graph is
counted.

`export` runs in that process and makes the `graph`; the other modules are pure and read that graph: `regions`
says which elements of a tensor are needed, `operators` and `count` what each operator costs, `conditions`
what a kernel could skip, and `work` adds everything up.
"""
