"""From a family's form to a plan for concrete extents, and to all its schedules: one line a family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ucutlass.ir.hardware import Arch, Device, default_device
from ucutlass.ir.schedule import Request
from ucutlass.kernels import space
from ucutlass.kernels.attention.planner import plan_attention
from ucutlass.kernels.convolution.planner import plan_convolution
from ucutlass.kernels.families import AttentionForm, ConvForm, Form, GemmForm, ProductsForm, SweepForm
from ucutlass.kernels.gemm.match import problem
from ucutlass.kernels.gemm.planner import plan
from ucutlass.kernels.grouped_gemm.planner import plan_products
from ucutlass.kernels.planned import AnyPlanned, FamilyPlanned
from ucutlass.kernels.reduction.planner import plan_sweep
from ucutlass.kernels.violation import Violation

FamilyForm = ProductsForm | SweepForm | ConvForm | AttentionForm
"""A form of a family besides GEMM."""


def plan_form(
    form: Form,
    sizes: Sequence[int],
    arch: Arch,
    device: Device | None,
    request: Request,
    aligned: Sequence[bool] | None = None,
) -> AnyPlanned | tuple[Violation, ...]:
    """The best legal kernel of a form that the request allows, or why there is none. Raises Refused.

    `sizes` in the order of the kernel's dimensions; `aligned`: whether each pointer is a multiple of
    16 bytes, None: all are. Without a device the architecture's default one is planned for.
    """
    extents, gpu = tuple(sizes), device or default_device(arch)
    if isinstance(form, GemmForm):
        return plan(problem(form, extents, aligned), extents, arch, gpu, request)
    planner = _planner(form, extents, arch, gpu, None if aligned is None else tuple(aligned))
    made = planner(request)
    if isinstance(made, tuple) and request.given():
        return space.with_nearest(planner, request, made)
    return made


def kernels(
    form: FamilyForm,
    sizes: Sequence[int],
    arch: Arch,
    device: Device | None,
    request: Request,
    free: bool = False,
) -> Iterator[FamilyPlanned]:
    """The kernels of a form that a request stands for, the planner's own first: see `space.kernels`. Raises
    Refused."""
    gpu = device or default_device(arch)
    return space.kernels(_planner(form, tuple(sizes), arch, gpu, None), request, free)


def _planner(
    form: FamilyForm, sizes: tuple[int, ...], arch: Arch, device: Device, aligned: tuple[bool, ...] | None
) -> space.Plan:
    match form:
        case ProductsForm():
            return partial(plan_products, form, sizes, arch, device, aligned=aligned)
        case SweepForm():
            return partial(plan_sweep, form, sizes, arch, device, aligned=aligned)
        case ConvForm():
            return partial(plan_convolution, form, sizes, arch, device, aligned=aligned)
        case AttentionForm():
            return partial(plan_attention, form, sizes, arch, device, aligned=aligned)
