"""View of a plan's group."""

from dataclasses import replace

from tests.reporting.tensorboard import examples
from tf_libra.reporting.tensorboard.views.plan import group_view

RECORD = examples.plan_record()


def test_reasons_of_an_untrusted_model_have_a_caveat() -> None:
    assert group_view(RECORD, 0)["caveat"] == ""
    record = replace(RECORD, conclusion=replace(RECORD.conclusion, max_model_error=0.05))
    assert group_view(record, 0)["caveat"] == "by a model that misses by 9.0 %"


def test_alternatives_beyond_the_fitted_threads_are_marked() -> None:
    group = next(k for k, candidate in enumerate(RECORD.plan.groups) if candidate.num_threads == 4)
    changes = {
        alternative["change"] for alternative in group_view(RECORD, group)["why"]["alternatives"]
    }
    assert {"r = 2", "r = 8, extrapolated"} <= changes
