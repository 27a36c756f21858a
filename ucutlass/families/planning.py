"""From a family's form to a plan for concrete extents: one line a family."""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass.families import AttentionForm, ConvForm, Form, GemmForm, ProductsForm, SweepForm
from ucutlass.families.attention_planning import plan_attention
from ucutlass.families.convolution_planning import plan_convolution
from ucutlass.families.gemm import problem
from ucutlass.families.products_planning import plan_products
from ucutlass.families.sweep_planning import plan_sweep
from ucutlass.hardware import Arch, Device, default_device
from ucutlass.planned import AnyPlanned
from ucutlass.planner import plan
from ucutlass.rules.violation import Violation
from ucutlass.schedule import Request


def plan_form(
    form: Form, sizes: Sequence[int], arch: Arch, device: Device | None, request: Request,
    aligned: Sequence[bool] | None = None,
) -> AnyPlanned | tuple[Violation, ...]:
    """The best legal kernel of a form that the request allows, or why there is none. Raises Refused.

    `sizes` in the order of the kernel's dimensions; `aligned`: whether each pointer is a multiple of
    16 bytes, None: all are. Without a device the architecture's default one is planned for.
    """
    extents, gpu = tuple(sizes), device or default_device(arch)
    fine = None if aligned is None else tuple(aligned)
    match form:
        case GemmForm():
            return plan(problem(form, extents, aligned), extents, arch, gpu, request)
        case ProductsForm():
            return plan_products(form, extents, arch, gpu, request, fine)
        case SweepForm():
            return plan_sweep(form, extents, arch, gpu, request, fine)
        case ConvForm():
            return plan_convolution(form, extents, arch, gpu, request, fine)
        case AttentionForm():
            return plan_attention(form, extents, arch, gpu, request, fine)
