"""A kernel family in two files: what ucutlass/kernels/<family>/ and emit/<family>/ have of one."""
