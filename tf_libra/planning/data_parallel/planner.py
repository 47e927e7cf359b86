"""From a strategy to a plan."""

from dataclasses import replace

from tf_libra import strategies
from tf_libra.cost_model import ContentionModel
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning.data_parallel.asc_wfbp import plan_asc_wfbp
from tf_libra.planning.data_parallel.draft import Draft
from tf_libra.planning.data_parallel.fixed import plan_horovod_fusion, plan_syneasgd, plan_wfbp
from tf_libra.planning.data_parallel.libra import plan_libra
from tf_libra.planning.data_parallel.libra_exact import plan_libra_exact
from tf_libra.planning.data_parallel.libra_m import plan_libra_m
from tf_libra.planning.data_parallel.mg_wfbp import plan_mg_wfbp
from tf_libra.simulation import simulate


def make_plan(
    profile: BackwardProfile, cost: ContentionModel, strategy: strategies.Strategy | str
) -> Plan:
    """Returns the strategy's plan for a profile under a cost model, with its predicted time.

    Args:
      profile: the gradients of one step.
      cost: what all-reduces and computation cost, for the number of workers to plan for.
      strategy: an object of `tf_libra.strategies`, or the name of one.

    Raises:
      ValueError: an unknown strategy, or a rate that is not positive at its threads.
    """
    strategy = strategies.resolve(strategy)
    draft = _draft(profile, cost, strategy)
    plan = Plan.for_profile(
        profile,
        draft.groups,
        cost.num_workers,
        strategy.name,
        notes=draft.notes,
        contention=draft.contention,
    )
    return replace(plan, predicted_seconds=simulate(profile, plan, cost).backward_seconds)


def _draft(profile: BackwardProfile, cost: ContentionModel, strategy: strategies.Strategy) -> Draft:
    match strategy:
        case strategies.SynEasgd():
            return plan_syneasgd(profile, strategy)
        case strategies.Wfbp():
            return plan_wfbp(profile, strategy)
        case strategies.HorovodFusion():
            return plan_horovod_fusion(profile, strategy)
        case strategies.MgWfbp():
            return plan_mg_wfbp(profile, cost, strategy)
        case strategies.AscWfbp():
            return plan_asc_wfbp(profile, cost, strategy)
        case strategies.LibraM():
            return plan_libra_m(profile, cost, strategy)
        case strategies.Libra(exact=True):
            return plan_libra_exact(profile, cost, strategy)
        case strategies.Libra():
            return plan_libra(profile, cost, strategy)
