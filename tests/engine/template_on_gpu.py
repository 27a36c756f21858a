"""Has the template that imports this look as if it used a GPU."""

import sys

sys.modules["__main__"]._uses_gpu = lambda: True  # type: ignore[attr-defined]
