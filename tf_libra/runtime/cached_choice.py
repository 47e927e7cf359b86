"""The family that won trials, in the plan cache of rank 0 and on all ranks."""

from dataclasses import replace

from tf_libra.planning.family_comparison import FamilyComparison
from tf_libra.runtime.family_choice import FamilyChoice
from tf_libra.runtime.protocol import CandidateStep
from tf_libra.runtime.training_step import TrainingFunction


def load_choice(first: TrainingFunction) -> FamilyChoice | None:
    """Returns the choice that rank 0 has cached in an earlier job; all ranks call it.

    Args:
        first: the step under data parallelism, whose cache has it.
    """
    found = None if first.cache is None else first.cache.load_family()
    document, *_ = first.exchange(None if found is None else found.to_document())
    return None if document is None else FamilyChoice.from_document(document)


def store_choice(
    first: TrainingFunction, families: FamilyComparison, step: CandidateStep | None
) -> None:
    """Caches the active family for later jobs, on rank 0.

    Args:
        first: the step under data parallelism, which has the cache.
        families: the families.
        step: step of the active family; None for data parallelism.
    """
    if first.cache is None:
        return
    choice = FamilyChoice(families.active, families)
    if step is not None:
        choice = replace(choice, plan=step.plan.to_json(), computation=step.computation)
    first.cache.store_family(choice)
