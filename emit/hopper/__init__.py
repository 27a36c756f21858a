"""The device library of Hopper kernels: PTX instructions as C++ functions, which every family's templates include.

A function is named as PTX names the instruction (`mbarrier_init`, `wgmma_commit_group`, `tma_load_4d` for
`cp.async.bulk.tensor.4d`), or as CuTe names the helper (`cast_smem_ptr_to_uint`, `warpgroup_fence_operand`,
`make_smem_desc`). Each template holds macros of one group of instructions; a kernel's template imports it and calls
the macros of what the kernel uses, so that the emitted file stands alone and holds nothing else. Barriers and shared
memory are addressed in the shared state space, by a `uint32_t`.

Kernels that are built around CUTLASS's own classes (its pipelines, `ClusterBarrier`, `SM90_TMA_LOAD_3D`) call these
for barriers and copies, and take from here what CUTLASS has only behind CuTe's layouts: wgmma, matrix descriptors,
ldmatrix and stmatrix.
"""
