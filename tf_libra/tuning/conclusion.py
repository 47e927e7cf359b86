"""What tuning has come to."""

from dataclasses import dataclass

from tf_libra.cost_model import ContentionModel, FitResult, OverlapSample
from tf_libra.model.plan import Plan
from tf_libra.profiling.backward import MeasuredProfile


@dataclass(frozen=True, eq=False)
class Tuned:
    """What tuning has come to.

    Attributes:
        plan: to run under.
        profile: measured backward computation; None where the budget was too short for one.
        cost_model: fitted; None where there was too little to fit.
        fit: how well the model fits the samples it was fitted to; None without a model.
        held_out_error: median over the plans that the fit has not seen of the relative error of
            predicted backward time, against the median of a plan's steps; None without such plans.
        samples: everything the model was fitted to.
        is_complete: whether all experiments were made and observed, and a model fitted.
        notes: what a reader should know, such as a budget that ended early.
    """

    plan: Plan
    profile: MeasuredProfile | None
    cost_model: ContentionModel | None
    fit: FitResult | None
    held_out_error: float | None
    samples: tuple[OverlapSample, ...] = ()
    notes: tuple[str, ...] = ()
    is_complete: bool = False
