"""Planning by a strategy."""

from dataclasses import replace

from tf_libra.cost_model import CostModel
from tf_libra.internal import validation
from tf_libra.planning.data_parallel.gathers import plan_gathers
from tf_libra.planning.strategy import Draft, Strategy, resolve
from tf_libra.simulation import simulate
from tf_libra.simulation.api import owned_problem
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan, wire_size

# Of gathers, for strategies without these arguments.
_MAX_GROUPS = 10
_CHUNKS = 150


def make_plan(
    profile: BackwardProfile,
    cost: CostModel,
    strategy: Strategy | str,
    wire_dtype: str | None = None,
    gathers: bool = False,
) -> Plan:
    """Returns the strategy's plan for a profile under a cost model, with its predicted time.

    Args:
      profile: the gradients of one step.
      cost: cost model for the number of workers to plan for.
      strategy: an object of `tf_libra.strategies`, or the name of one.
      wire_dtype: dtype to which float32 tensors are rounded on their way, "bfloat16" or "float16";
        None: every tensor travels in its own.
      gathers: True: the plan is of reduce-scatters, and of gathers under the next forward pass with
        groups and threads of their own (docs/sharded_updates.md).

    Raises:
      ValueError: an unknown strategy, or a rate that is not positive at its threads.
    """
    validation.instance("profile", profile, BackwardProfile)
    validation.instance("cost", cost, CostModel)
    strategy = resolve(strategy)
    travelling = sum(wire_size(t.num_bytes, t.dtype, wire_dtype) for t in profile.tensors)
    total = sum(tensor.num_bytes for tensor in profile.tensors)
    share = travelling / total if total else 1.0
    if gathers and not strategy.gathers_weights:
        draft = _with_gathers(profile, cost, strategy)
    else:
        draft = strategy.draft(profile, cost.on_wire(share, profile.bytes_per_effective))
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


def _with_gathers(profile: BackwardProfile, cost: CostModel, strategy: Strategy) -> Draft:
    """Plan reduce-scatters by the strategy, and gathers with its threads, K and Z."""
    owned, phase = owned_problem(profile, cost)
    draft = strategy.draft(owned, phase)
    gathers = plan_gathers(
        profile,
        phase,
        strategy.allowed_threads,
        getattr(strategy, "max_groups", _MAX_GROUPS),
        None if getattr(strategy, "exact", False) else getattr(strategy, "chunks", _CHUNKS),
    )
    notes = draft.notes
    if not profile.forward_seconds.any():
        notes = (*notes, "the forward pass is unknown, so gathers are planned to overlap nothing")
    return replace(draft, gathers=gathers, notes=notes)
