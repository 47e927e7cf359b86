"""The evaluation of measured steps in stages, from the job that tests `benchmarks.step_time`."""

import copy

import pytest
from absl import flags

from benchmarks import pipelines

PLAN = {"stages": [{}, {}], "predicted_seconds": 0.2}
SECONDS = {
    "spp": [0.3, 0.2, 0.25],
    "horovod:grouped": [0.6, 0.6, 0.7],
    "horovod:per_gradient": [0.5, 0.4, 0.5],
    "libra": [0.5, 0.5, 0.6],
}


def test_stages_are_compared_with_each_strategy_and_with_what_was_predicted() -> None:
    found = pipelines.evaluate(["horovod", "libra"], SECONDS, PLAN)
    assert found["stages"] == 2
    assert found["measured_over_predicted"]["median"] == pytest.approx(1.25)
    assert found["ratios"]["spp/horovod"]["median"] == pytest.approx(0.5)
    assert found["ratios"]["spp/libra"]["median"] == pytest.approx(0.25 / 0.6)
    assert found["best"] in ("horovod", "libra")  # of equal medians
    settings = {"model": "mlp", "np": 2, "network": "one host", "microbatches": 4}
    for markdown in (False, True):
        text = pipelines.table(found | {"settings": settings, "rounds": 3}, markdown=markdown)
        assert "spp: 2 stages, predicted 200.0 ms, measured over predicted 1.250" in text
        assert f"{found['best']} (best)" in text
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    assert rows[2] == "spp" and len(rows) == 5


def test_one_worker_is_compared_and_is_no_data_parallel_strategy() -> None:
    seconds = SECONDS | {"one-worker": [0.1, 0.1, 0.1]}
    found = pipelines.evaluate(["one-worker", "libra"], seconds, PLAN)
    assert found["ratios"]["spp/one-worker"]["median"] == pytest.approx(2.5)
    assert found["best"] == "libra"
    assert pipelines.evaluate(["one-worker"], seconds, PLAN)["best"] == "one-worker"


@pytest.mark.parametrize(
    "argument", ["--strategies=spp", "--strategies=libra,libra", "--microbatches=0", "--rounds=0"]
)
def test_bad_flags_are_named(argument: str) -> None:
    with pytest.raises(flags.IllegalFlagValueError) as raised:
        copy.deepcopy(pipelines.FLAGS)([pipelines.__name__, argument])
    assert f"flag {argument.partition('=')[0]}" in str(raised.value)
