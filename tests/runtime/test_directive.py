"""A directive of rank 0 reaches the others unchanged."""

import json

import pytest

from tests.reporting.tensorboard import examples
from tf_libra.autotune import Phase, PlanSource, Postponed, Trial
from tf_libra.runtime.directive import Directive, KeepPlan

CONCLUSION = examples.plan_record().conclusion
DIRECTIVES = [
    Directive("step", 3, Trial(Phase.SAMPLE, CONCLUSION.plan, traced=True)),
    Directive("step", 3, Trial(Phase.MEASURE, CONCLUSION.plan, traced=False)),
    *(Directive("step", 99, KeepPlan(then_try)) for then_try in (False, True)),
    Directive("step", 7, Postponed()),
    *(
        Directive("step#1", 61, CONCLUSION, origin)
        for origin in (PlanSource.TUNED, PlanSource.CACHED)
    ),
]


@pytest.mark.parametrize("directive", DIRECTIVES)
def test_arrives_as_it_was_sent(directive: Directive) -> None:
    message = json.loads(json.dumps(directive.to_message()))
    assert Directive.from_message(message) == directive


def test_directive_for_another_place_is_rejected() -> None:
    DIRECTIVES[0].check("step", 3, rank=1)
    with pytest.raises(ValueError, match=r"rank 1.*rank 0"):
        DIRECTIVES[0].check("other", 3, rank=1)
    with pytest.raises(ValueError, match=r"rank 2 .*step 4, rank 0 .*step 3"):
        DIRECTIVES[0].check("step", 4, rank=2)
