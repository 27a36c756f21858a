"""Lets the launches of a pipeline overlap: each begins while the one before it still runs.

A launch follows the end of the launch before it by a microsecond or two, in which the GPU does nothing: half of what a
small stage takes. With programmatic dependent launch the thread blocks of a kernel are there once those of the kernel
before have begun, and wait for its end, and its writes, before their first access. A kernel begins so where its text
has this form: each `__global__` function waits first, and each launch allows it. Lean kernels of GEMMs do so by
themselves (`gemm/lean_device.j2`).
"""

from __future__ import annotations

import re
from dataclasses import replace

from ucutlass.emit.text import PLACEHOLDER, Source, finish

ARCH = "sm_90a"
"""The first architecture with programmatic dependent launch that kernels are made for."""

_KERNEL = re.compile(r"^(?:template\b[^\n]*\n)?(?:extern \"C\" )?__global__[^{;]*\{[ \t]*\n", re.MULTILINE)
_WAIT = '  asm volatile("griddepcontrol.wait;" ::: "memory");\n  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");\n'
_LAUNCH, _OVERLAPPING = "cudaLaunchKernelEx(&config, ", "launch_overlapping(config, "
_NAMESPACE = "\nnamespace {\n"
_HELPER = """
/// Launches a kernel that waits for the launch before it where it begins.
template <class... Parameters, class... Arguments>
cudaError_t launch_overlapping(cudaLaunchConfig_t config, void (*kernel)(Parameters...), Arguments const&... arguments) {
  cudaLaunchAttribute attributes[4] = {};
  bool overlaps = config.numAttrs < 4;
  for (unsigned i = 0; overlaps && i < config.numAttrs; ++i) {
    attributes[i] = config.attrs[i];
    overlaps = attributes[i].id != cudaLaunchAttributeCooperative &&
               attributes[i].id != cudaLaunchAttributeProgrammaticStreamSerialization;
  }
  if (overlaps) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs += 1;
  }
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}
"""


def overlapping(code: str) -> str:
    """Returns the code with launches that overlap the one before; as it is where some launch is of another form, or
    follows what is no kernel."""
    launches = code.count(_LAUNCH)
    if (
        not launches
        or launches != code.count("cudaLaunchKernel")
        or "<<<" in code
        or "cudaMemsetAsync" in code
    ):
        return code
    if len(_KERNEL.findall(code)) != code.count("__global__") or _NAMESPACE not in code:
        return code
    waiting = _KERNEL.sub(lambda head: head[0] + _WAIT, code)
    return waiting.replace(_LAUNCH, _OVERLAPPING).replace(_NAMESPACE, _NAMESPACE + _HELPER, 1)


def overlapping_source(source: Source) -> Source:
    """Returns a kernel's source in that form, under a name of its own; as it is where the form is not possible."""
    code = overlapping(source.code) if source.arch == ARCH else source.code
    if code == source.code:
        return source
    named = finish(code.replace(source.entry, PLACEHOLDER), "", source.arch)
    header = source.text.removesuffix(source.code)
    return replace(source, text=f"{header}{named.code}", code=named.code, entry=named.entry)
