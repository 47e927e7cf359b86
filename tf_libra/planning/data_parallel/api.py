"""Planning by a strategy."""

from dataclasses import replace

from tf_libra.cost_model import CostModel
from tf_libra.internal import validation
from tf_libra.planning.strategy import Strategy, resolve
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan, wire_size


def make_plan(
    profile: BackwardProfile,
    cost: CostModel,
    strategy: Strategy | str,
    wire_dtype: str | None = None,
) -> Plan:
    """Returns the strategy's plan for a profile under a cost model, with its predicted time.

    Args:
      profile: the gradients of one step.
      cost: cost model for the number of workers to plan for.
      strategy: an object of `tf_libra.strategies`, or the name of one.
      wire_dtype: dtype to which float32 tensors are rounded on their way, "bfloat16" or "float16";
        None: every tensor travels in its own.

    Raises:
      ValueError: an unknown strategy, or a rate that is not positive at its threads.
    """
    validation.instance("profile", profile, BackwardProfile)
    validation.instance("cost", cost, CostModel)
    strategy = resolve(strategy)
    travelling = sum(wire_size(t.num_bytes, t.dtype, wire_dtype) for t in profile.tensors)
    total = sum(tensor.num_bytes for tensor in profile.tensors)
    share = travelling / total if total else 1.0
    draft = strategy.draft(profile, cost.on_wire(share))
    plan = Plan.for_profile(
        profile,
        draft.groups,
        cost.num_workers,
        strategy.name,
        notes=draft.notes,
        contention=draft.contention,
        wire_dtype=wire_dtype,
        gathers=draft.gathers,
    )
    return replace(plan, predicted_seconds=simulate(profile, plan, cost).backward_seconds)
