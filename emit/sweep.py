from ucutlass.plans.sweep import SweepPlan


def render(plan: SweepPlan) -> str:
    raise NotImplementedError
