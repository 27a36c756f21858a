"""Every diagnostic code with what it stands for; the guide and docs/diagnostics.md list them.

UC00xx syntax, UC01xx names, UC02xx types and dimensions, UC03xx what one kernel can do,
UC04xx schedules, UC05xx pipelines, UC06xx shapes given for a check or a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CODES: Mapping[str, str] = MappingProxyType(
    {
        "UC0101": "unknown name",
        "UC0102": "a bare dimension name in an expression",
        "UC0103": "a name is defined twice",
        "UC0104": "unknown function",
        "UC0105": "wrong number or name of arguments",
        "UC0106": "a function calls itself",
        "UC0107": "the program is too large once functions are expanded",
        "UC0108": "a name is both a dimension and a value",
        "UC0109": "a program calls a program where only a pipeline may",
        "UC0201": "unknown element type",
        "UC0202": "a dimension stands twice in one type",
        "UC0203": "operands of dot differ in element type",
        "UC0204": "no lane multiplies this element type",
        "UC0205": "a contracted name is not in both operands",
        "UC0206": "an accidentally equal name became a batch name",
        "UC0207": "the value lacks a name of the type it is returned or bound as",
        "UC0208": "the value has a name that the type it is returned or bound as lacks",
        "UC0209": "a dimension's extent is given nowhere",
        "UC0210": "a dimension is given two extents",
        "UC0211": "a consumed name is not a dimension of the value",
        "UC0212": "wrong kind of value",
        "UC0213": "a composite axis cannot be split: more than one of its extents is unknown",
        "UC0214": "not an affine position",
        "UC0215": "the indexed name is not a dimension of the value",
        "UC0216": "this element type cannot lie in memory",
        "UC0217": "unknown accumulation for this lane",
        "UC0218": "results and return do not match",
        "UC0219": "a scalar cannot be a result",
        "UC0220": "a nameless axis longer than 1 cannot take part in an expression",
        "UC0221": "not an extent",
        "UC0222": "brackets are missing or not wanted",
        "UC0223": "a kernel must end in one return",
        "UC0300": "no kernel family for this yet",
        "UC0302": "work on an operand before dot other than a cast",
        "UC0303": "a reduction of the result is used again: cut here",
        "UC0304": "an epilogue operand is indexed",
        "UC0305": "more batch dimensions than a kernel can address",
        "UC0306": "a stored element type that no kernel writes",
        "UC0307": "a dimension of the result comes from an epilogue operand alone",
        "UC0308": "a cast of an operand that needs a pass over memory first",
        "UC0309": "a reduction that no epilogue has",
        "UC0310": "an element type that no kernel without dot reads or writes",
        "UC0311": "reductions over different names in one launch",
        "UC0312": "results over different names in one launch",
        "UC0313": "a reduction that no window has",
        "UC0314": "an index that one launch cannot follow",
        "UC0315": "a kernel whose schedule space is not explored",
        "UC0316": "a scan that one launch cannot do",
        "UC0401": "unknown architecture",
        "UC0402": "unknown schedule field",
        "UC0403": "illegal value for a schedule field",
        "UC0404": "a schedule that can never be chosen",
        "UC0405": "a guard that is not a condition on extents",
        "UC0406": "a field is given twice",
        "UC0460": "more rows or columns than a launch numbers",
        "UC0501": "a stage's argument does not fit the callee",
        "UC0502": "a call must stand alone as a stage",
        "UC0503": "a stored binding outside a pipeline",
        "UC0504": "a torch call needs a stored binding that names its type",
        "UC0601": "an extent is missing or not positive",
        "UC0602": "extents contradict each other",
        "UC0603": "a requirement of the program does not hold",
    }
)
"""Legality rules (UC041x and up) carry their codes in `ucutlass.rules`."""
