"""View of the contention model and its samples."""

from dataclasses import replace

from tests.reporting.tensorboard import examples
from tf_libra.cost_model import OverlapSample
from tf_libra.reporting.tensorboard.views.contention import contention_view

RECORD = examples.plan_record()


def test_samples_of_mostly_startup_have_no_rate() -> None:
    """Startup dominates small all-reduces, so their rates are arbitrary."""
    model = RECORD.conclusion.cost_model
    assert model is not None
    short = [
        OverlapSample(64, 1, 0.0, 0.0, factor * model.exclusive_startup_seconds, step=1, plan="p")
        for factor in (1.01, 1.5, 4)
    ]
    samples = (*RECORD.conclusion.samples, *short)
    conclusion = replace(RECORD.conclusion, samples=samples)
    view = contention_view(replace(RECORD, conclusion=conclusion))
    rates = [sample["rate"] for sample in view["samples"]]
    assert rates[-3:] == [None] * 3
    keys = ("overlapped_rate", "exclusive_rate")
    fitted = [row[key] for row in view["at_threads"] for key in keys]
    reported = [rate for rate in rates if rate is not None]
    assert len(reported) > len(samples) / 2
    assert 0.6 * min(fitted) < min(reported) and max(reported) < 1.6 * max(fitted)
