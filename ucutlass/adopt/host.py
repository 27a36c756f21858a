"""Checks the object that an adopted source was compiled to: what its host code calls, and what runs when it
is loaded.

The list of what may be called is short, and everything else is refused: a kernel's host code computes
parameters and launches. The object is looked at before the library is loaded, which would run its startup code.
"""

from __future__ import annotations

import re

from ucutlass.adopt.refusals import SourceRefused
from ucutlass.runtime import elf

_MATH = (
    "acos asin atan atan2 cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax fmin fmod "
    "frexp hypot ldexp llrint log log10 log1p log2 lrint lround modf nearbyint nextafter pow remainder rint "
    "round scalbn sin sincos sinh sqrt tan tanh tgamma lgamma trunc"
).replace(" ", "|")

_ALLOWED = re.compile(
    r"""cuda[A-Z]\w* | __cuda[A-Z]\w*
      | _Unwind_\w+ | __cxa_\w+ | __gxx_personality_v0 | __dso_handle | _GLOBAL_OFFSET_TABLE_ | __tls_get_addr
      | __stack_chk_fail | atexit | exit | abort
      | __(?:u?div|u?mod|mul|float|fix|extend|trunc|clz|ctz|popcount)[a-z]*[0-9]?
      | memcpy | memmove | memset | memcmp | strlen | malloc | calloc | realloc | free
      | _Zn[wa]\w+ | _Zd[la]\w+ | _ZSt\d+__throw_\w+ | _ZSt9terminatev | _ZNSt8ios_base4Init[CD]1Ev | _ZSt21ios_base_library_initv
      | pthread_mutex_(?:lock|unlock) | pthread_once | __pthread_key_create | __once_proxy
      | _ZSt15__once_callable | _ZSt11__once_call
      | printf | puts | putchar
      | (?:"""
    + _MATH
    + r")[fl]?",
    re.VERBOSE,
)
"""What nvcc's stubs, CUDA's runtime, the headers of C++, and arithmetic refer to."""

_REFUSED = re.compile(
    r"cuda(?:Library|Ipc|Import|Export|Profiler)\w*|cudaLaunchHostFunc\w*|cudaStreamAddCallback\w*"
    r"|cudaDeviceReset|cudaSetDevice\w*"
)
"""Of CUDA's runtime: functions that load code, call the host back, share memory, or change the process."""

_REGISTERING = "_ZL24__sti____cudaRegisterAllv"
"""nvcc's own function that hands the kernels to the runtime."""

_OF_IOSTREAM = frozenset(
    {
        "_ZNSt8ios_base4InitC1Ev",
        "_ZNSt8ios_base4InitD1Ev",
        "__cxa_atexit",
        "__dso_handle",
        "_GLOBAL_OFFSET_TABLE_",
        "_ZStL8__ioinit",
        ".bss",
    }
)
"""What the initialiser of <iostream>, which CUTLASS includes, refers to; each once."""


def check(data: bytes, entry: str) -> None:
    """Looks at an object file. Raises SourceRefused."""
    try:
        compiled = elf.read(data)
    except elf.ElfUnreadable as problem:
        raise SourceRefused("object", f"the object file cannot be read: {problem}") from problem
    if compiled.resolvers:
        raise SourceRefused("startup", f"{compiled.resolvers[0]:.80} is chosen when the library is loaded")
    names = [function.name for function in compiled.startup]
    for function in compiled.startup:
        if names.count(function.name) > 1 or not _is_usual(function):
            words = f"{function.name[:80] or 'a function without a name'} runs with {_shown(function)}"
            raise SourceRefused("startup", words)
    foreign = sorted(n for n in compiled.undefined if not _ALLOWED.fullmatch(n) or _REFUSED.fullmatch(n))
    if foreign:
        raise SourceRefused("host-call", f"its host code refers to {', '.join(foreign[:5]):.200}")
    offered = sorted(name for name in compiled.functions if not name.startswith("_"))
    if offered != [entry]:
        raise SourceRefused("entry", f"the object offers {', '.join(offered[:5]) or 'nothing':.200}")


def _is_usual(function: elf.StartupFunction) -> bool:
    if function.name == _REGISTERING:
        return True
    references = function.references
    # A static object of the source is initialised in the same function, and adds references of its own.
    return (
        function.name.startswith("_GLOBAL__sub_I_")
        and set(references) <= _OF_IOSTREAM
        and len(references) == len(set(references))
    )


def _shown(function: elf.StartupFunction) -> str:
    others = [name for name in function.references if name not in _OF_IOSTREAM]
    return f"references to {', '.join(others[:3]):.160}" if others else "no reference that says what it does"
