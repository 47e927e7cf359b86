"""Scripts written for Horovod train under a plan as they train without us, and as one process."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.worker_processes import HOROVOD_IN_STEPS, Job
from tf_libra.runtime.plan_activation import NOT_EXECUTED

ROOT = Path(__file__).parents[2]
RANKS = [0, 1]
# Case: what the weights are compared with. `alone` is one process on the joint batch, `plain` the
# same script, without the decorator, on the same workers.
COMPARED = {
    "tape": ["alone", "plain"],
    "predividing_tape": ["alone", "plain"],
    "grouping_tape": ["alone", "plain"],
    "tape_of_sums": ["plain"],
    "compressing_tape": ["plain"],
    "tape_with_local_source": ["plain"],
    "perturbed_tape": ["plain"],
    "each": ["alone", "plain"],
    "each_with_maxima": ["alone", "plain"],
    "each_scaled": ["plain"],
    "each_compressed": ["plain"],
    "each_clipped": ["plain"],
    "partly_in_process_set": ["plain"],
    "grouped": ["alone", "plain"],
    "grouped_with_figures": ["alone", "plain"],
    "with_figures": ["alone"],
    "version_1_optimizer": ["alone", "plain"],
    "looked_by_tape": ["alone", "plain"],
    "looked_by_dense_tape": ["alone", "plain"],
    "looked_by_each": ["alone", "plain"],
    "looked_grouped": ["alone", "plain"],
    "keras_tape": ["alone"],
    "keras_each": ["alone"],
    "keras_optimizer": ["alone"],
}
COMPARED_WITH_TF_KERAS = {
    "minimizing": ["alone", "plain"],
    "minimizing_legacy": ["alone", "plain"],
    "accumulating": ["plain"],
    "applying": ["alone"],
}
# Case: why no plan can be about its gradients.
UNPLANNED = {
    "tape_of_minima": "op=Min",
    "tape_of_maxima": "op=Max",
    "tape_of_products": "op=Product",
    "tape_in_process_set": "process_set=[{rank}]",
    "each_in_process_set": "process_set=[{rank}]",
    "grouped_in_process_set": "process_set=[{rank}]",
    "in_one_vector": "in another shape",
    "of_largest": "in another shape",
    "scattered": "in another shape",
}
UNPLANNED_WITH_TF_KERAS = {"minimizing_in_process_set": "process_set=[{rank}]"}
# These optimizers keep the learning rate in float32.
ALMOST = {"version_1_optimizer", *COMPARED_WITH_TF_KERAS, *UNPLANNED_WITH_TF_KERAS}

REFUSED = {
    "some_only": ["'w0' with Horovod, but not that of 'b0'", "all of them, or none"],
    "averaged_in_a_function": ["'w0'", "apart", "averaged twice", "in the step itself"],
    "computed_in_a_function": ["averaged twice", "use hvd.DistributedGradientTape"],
    "scalar_of_a_scalar": ["'one'", "scalar", "take hvd.allreduce out of the step"],
    "shown_maxima": ["'w0', with op=Max", "out of the step"],
    "shown_finite": ["'w0', with dtype=int32", "out of the step"],
    "adasum_of_changes": ["op=Adasum", "weight updates", "'w0'"],
    "averages_of_weights": ["reduces 'w0'", "average gradients or weights", "local SGD"],
    "averages_of_changes": ["reduces 'w0'", "average gradients or weights", "local SGD"],
    "norms_of_each_as_rates": ["made of the gradient of", "the gradient itself", "each gradient"],
    "local_steps_by_a_flag_at_first": ["'w0' with Horovod", "earlier trace", "updated"],
    "process_set_on_one_rank": ["number of averaged gradients is 0 on rank 0 and 6 on rank 1"],
    "called_by_a_strategy": ["Script.step runs under MirroredStrategy", "Horovod"],
    "calls_a_strategy": ["distributed_step runs under MirroredStrategy", "Horovod"],
}


@pytest.fixture(scope="module")
def scripts(run_job: Callable[..., Job]) -> Job:
    """The job of `jobs/horovod_scripts.py`."""
    return run_job("horovod_scripts.py", 2, env=HOROVOD_IN_STEPS)


@pytest.fixture(scope="module")
def tf_keras_scripts(run_job: Callable[..., Job]) -> Job:
    """The job of `jobs/horovod_tf_keras.py`."""
    return run_job("horovod_tf_keras.py", 2, env=HOROVOD_IN_STEPS | {"TF_USE_LEGACY_KERAS": "1"})


def check_weights(job: Job, case: str, rank: int, references: list[str]) -> None:
    assert job.value(case, rank)["phase"] == "run"
    arrays = job.arrays(case, rank)
    ours = {key[5:]: value for key, value in arrays.items() if key.startswith("ours/")}
    assert ours
    for reference in references:
        for name, value in ours.items():
            np.testing.assert_allclose(
                value,
                arrays[f"{reference}/{name}"],
                rtol=1e-7 if case in ALMOST else 1e-12,
                atol=1e-8 if case in ALMOST else 1e-14,
                err_msg=f"{name}, compared with {reference}",
            )


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", COMPARED)
def test_weights_are_those_of_the_script_and_of_one_process(
    scripts: Job, case: str, rank: int
) -> None:
    check_weights(scripts, case, rank, COMPARED[case])


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", COMPARED_WITH_TF_KERAS)
def test_weights_with_keras_2(tf_keras_scripts: Job, case: str, rank: int) -> None:
    check_weights(tf_keras_scripts, case, rank, COMPARED_WITH_TF_KERAS[case])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_by_the_script_has_the_bits_of_the_wire_dtype(scripts: Job, dtype: str) -> None:
    for rank in RANKS:
        case = f"rounded_to_{dtype}"
        arrays = scripts.arrays(case, rank)
        by_script = {key[5:]: value for key, value in arrays.items() if key.startswith("None/")}
        assert len(by_script) == 6
        for name, value in by_script.items():
            assert value.tobytes() == arrays[f"{dtype}/{name}"].tobytes()
        texts = [" ".join(text.split()) for text in scripts.value(case, rank)["explained"]]
        by_itself = f"the script itself rounds 6 gradients .* from float32 to {dtype}"
        assert [bool(re.search(by_itself, text)) for text in texts] == [True, False]
        assert all("lossy" in text for text in texts)


@pytest.mark.parametrize("rank", RANKS)
def test_tape_of_horovod_takes_part_in_trials_of_families(scripts: Job, rank: int) -> None:
    """One rank, which wins them, trains to the weights of one process."""
    assert scripts.value("tape_by_auto", rank)["plan"] == "OneRankPlan"
    check_weights(scripts, "tape_by_auto", rank, ["alone"])


@pytest.mark.parametrize("case", COMPARED)
def test_gradients_are_planned_under_the_names_of_their_variables(scripts: Job, case: str) -> None:
    # A plan of other names would raise; a step that was not executed as planned is reported.
    assert NOT_EXECUTED not in scripts.log(case)
    assert scripts.value(case)["groups"] == 3


def check_unplanned(job: Job, case: str, rank: int, why: str) -> None:
    check_weights(job, case, rank, ["plain"])
    value = job.value(case, rank)
    assert not value["planned"]
    reported = f"as the script says ({why.format(rank=rank)}): there is nothing to plan"
    assert reported in job.log(case, rank)
    assert reported in " ".join(value["explained"].split())


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", UNPLANNED)
def test_reductions_that_no_plan_can_include_stay_with_horovod(
    scripts: Job, case: str, rank: int
) -> None:
    check_unplanned(scripts, case, rank, UNPLANNED[case])


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", UNPLANNED_WITH_TF_KERAS)
def test_reductions_that_stay_with_horovod_under_keras_2(
    tf_keras_scripts: Job, case: str, rank: int
) -> None:
    check_unplanned(tf_keras_scripts, case, rank, UNPLANNED_WITH_TF_KERAS[case])


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", ["tape_by_adasum", "each_by_adasum"])
def test_adasum_stays_with_horovod(scripts: Job, case: str, rank: int) -> None:
    # Horovod on Gloo says that it has none, which shows that Horovod ran it.
    assert "No Adasum operation enabled" in scripts.error(case, rank)
    assert "as the script says (op=Adasum): there is nothing to plan" in scripts.log(case, rank)


def test_reductions_left_to_horovod_under_a_plan_are_logged(scripts: Job) -> None:
    assert "INFO Horovod reduces the gradient of 'w0' as the script says (process_set=[0])" in (
        scripts.log("partly_in_process_set")
    )
    assert "'table' as the script says (IndexedSlices)" in scripts.log("looked_by_tape")


ACCUMULATES = "not every step all-reduces its gradients"


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", ["accumulating", "accumulating_tuned"])
def test_plan_is_followed_in_the_steps_that_all_reduce(
    tf_keras_scripts: Job, case: str, rank: int
) -> None:
    value = tf_keras_scripts.value(case, rank)
    assert value["phase"] == "run"
    assert NOT_EXECUTED not in tf_keras_scripts.log(case, rank)
    assert tf_keras_scripts.log(case, rank).count(ACCUMULATES) == (rank == 0)


@pytest.mark.parametrize("rank", RANKS)
def test_several_steps_in_one_graph_may_accumulate(tf_keras_scripts: Job, rank: int) -> None:
    value = tf_keras_scripts.value("accumulating_in_several", rank)
    assert value["phase"] == "run"
    assert value["error"] < 1e-12
    # Each gradient once, although the function inside is traced before Horovod's average is seen.
    assert sorted(value["planned"]) == ["b0", "b1", "b2", "w0", "w1", "w2"]
    assert NOT_EXECUTED not in tf_keras_scripts.log("accumulating_in_several", rank)


def test_explain_says_that_not_every_step_all_reduces(tf_keras_scripts: Job) -> None:
    explained = tf_keras_scripts.value("accumulating_tuned")["explained"]
    assert ACCUMULATES in " ".join(explained.split())


@pytest.mark.parametrize("case", ["grouped_with_figures", "with_figures"])
def test_horovod_averages_figures_under_a_plan(scripts: Job, case: str) -> None:
    shown = [scripts.arrays(case, rank)["shown/ours"] for rank in RANKS]
    np.testing.assert_array_equal(shown[0], shown[1])


@pytest.mark.parametrize("rank", RANKS)
def test_steps_that_a_flag_makes_local_stay_local(scripts: Job, rank: int) -> None:
    check_weights(scripts, "local_steps_by_a_flag", rank, ["plain"])
    assert "gradients of 'w0', 'b0', 'w1', 'b1', 'w2' and 1 more stay each rank's own" in (
        scripts.log("local_steps_by_a_flag", rank)
    )


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", REFUSED)
def test_ambiguous_gradients_are_rejected(scripts: Job, case: str, rank: int) -> None:
    message = scripts.error(case, rank)
    assert message.startswith("ValueError")
    for part in REFUSED[case]:
        assert part in message


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (["horovod_mnist.py", "--steps=40", "--engine=horovod"], "step 20: loss"),
        (
            [
                "horovod_synthetic_benchmark.py",
                *(
                    "--model=MobileNet",
                    "--image_size=32",
                    "--batch_size=2",
                    "--num_warmup_batches=2",
                ),
                *("--num_iters=1", "--num_batches_per_iter=2"),
            ],
            "total on 2 worker(s)",
        ),
    ],
)
def test_examples_run(run_job: Callable[..., Job], example: list[str], said: str) -> None:
    script, *arguments = example
    job = run_job(str(ROOT / "examples" / script), 2, "--strategy=mg-wfbp", *arguments)
    assert said in job.output(0)
