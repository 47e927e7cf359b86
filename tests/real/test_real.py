"""Scripts in the manner of what people publish, each to an active plan and to the right weights.

One process on the joint batches is the reference, or Horovod where averaging differs by nature.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.real import judging
from tests.worker_processes import HOROVOD_IN_STEPS, Job, launched
from tf_libra.runtime.plan_activation import NOT_EXECUTED

# No rank waits as long as this while all goes well.
TIMEOUT = {"TF_LIBRA_TIMEOUT_SECONDS": "120"}
JOBS = {
    "pictures": ("images", "image_representations", "generative", "horovod_examples"),
    "sequences": ("sequences", "text", "fields", "reinforcement_learning"),
    "training_patterns": (
        "gradient_patterns",
        "control_flow",
        "variables_and_callables",
        "keras_training",
        "unequal_data",
    ),
    "rejected": ("rejected",),
}
TRAINED = {
    "pictures": [
        "convolution_by_hand",
        "convnet_by_hand",
        "depthwise_by_hand",
        "functional_convnet",
        "residual_network",
        "unet",
        "autoencoder_by_fit",
        "siamese_network",
        "simclr",
        "mixed_precision_by_fit",
        "loss_scale_from_two_to_the_twentieth",
        "distillation",
        "variational_autoencoder",
        "dcgan_with_two_tapes",
        "gan_by_fit",
        "wasserstein_with_gradient_penalty",
        "cycle_gan",
        "two_networks_two_steps",
        "denoising_diffusion",
        "coupling_flow",
        "mnist_with_first_batch",
        "mnist_broadcast_before",
        "synthetic_benchmark",
        "plain_tape_over_mnist",
        "word_vectors_by_horovod",
        "gradients_averaged_by_hand",
        "elastic_mnist",
    ],
    "sequences": [
        "gru_with_initial_state_by_fit",
        "seq2seq_lstm",
        "translation_with_attention",
        "rnn_by_while_loop",
        "learned_initial_state",
        "rnn_by_scan",
        "rnn_by_python_loop",
        "neural_ode",
        "neural_ode_runge_kutta",
        "deep_equilibrium",
        "lstm_language_model",
        "bidirectional_tagger",
        "speech_by_ctc",
        "temporal_convolutions",
        "transformer_classifier",
        "causal_language_model",
        "tied_embeddings_by_hand",
        "masked_language_model",
        "word_vectors",
        "mixture_of_experts",
        "expert_chosen_by_cond",
        "translation_transformer",
        "vision_transformer",
        "deep_q_network",
        "soft_actor_critic",
        "actor_critic_over_an_episode",
        "message_passing_by_segments",
        "graph_attention",
        "physics_informed_network",
        "adversarial_training",
        "matrix_factorization",
        "wide_and_deep",
        "meta_learning",
        "anomaly_scores_with_center",
        "gaussian_process_features",
    ],
    "training_patterns": [
        "gradient_accumulation",
        "accumulation_by_keras",
        "average_of_weights",
        "clipped_by_global_norm",
        "unused_head",
        "unused_head_as_zero",
        "frozen_then_unfrozen",
        "unfrozen_in_a_loop",
        "recomputed_blocks",
        "recomputed_keras_layers",
        "custom_gradient",
        "step_under_a_condition",
        "auxiliary_head_under_a_condition",
        "loop_over_a_dataset_in_the_step",
        "iterator_in_the_step",
        "several_steps_in_one_call",
        "steps_per_execution",
        "many_small_variables",
        "metrics_in_the_step",
        "batch_normalization_by_fit",
        "callable_object",
        "partial_function",
        "method_of_a_class",
        "variables_as_arguments",
        "models_of_a_k_fold",
        "starts_unequal",
        "data_in_a_variable",
        "train_on_batch",
        "float16_by_hand",
        "multi_task",
        "masked_update",
        "weights_that_were_read",
        "complex_weights",
        "files_of_unequal_length",
        "files_of_unequal_length_by_fit",
    ],
}
# Script: what the error says on every rank.
REFUSED = {
    "functions_run_eagerly": ["ValueError", "run_functions_eagerly"],
    "compiled_by_xla": ["ValueError", "remove jit_compile=True"],
    "gradient_compiled_by_xla": ["ValueError", "remove jit_compile=True"],
    "decorators_in_the_wrong_order": ["ValueError", "decorate the outer function instead"],
    "decorator_without_parentheses": ["ValueError", "@tf_libra.optimize()"],
    "under_a_strategy": ["ValueError", "MirroredStrategy", "without strategy.run"],
    "nothing_is_trained": ["ValueError", "computes no gradient of a trainable variable"],
    "old_gradients": ["ValueError", "tf.gradients", "use tf.GradientTape"],
    "version_1_optimizer": ["ValueError", "tf.gradients", "use tf.GradientTape"],
    "model_agnostic_meta_learning": ["ValueError", "inner_gradients='average'", "'local'"],
    "keras_runs_eagerly": ["ValueError", "compile it with run_eagerly=False"],
    "keras_compiled_by_xla": ["ValueError", "compile it with jit_compile=False"],
    "one_rank_has_another_model": ["ValueError", "gradient['v'] is 'float64 (8, 3)' on rank 0"],
    "uneven_data_with_join": ["hvd.join"],
}
PLACES = [(job, name) for job, names in TRAINED.items() for name in names]
RANKS = [0, 1]


@pytest.fixture(scope="module")
def job_of(run_job: Callable[..., Job]) -> Callable[[str], Job]:
    """Returns the job of a name, which starts at the first request.

    Tests name it in their parameter `place`, by which those of one job are kept together.
    """
    jobs: dict[str, Job] = {}

    def get(name: str) -> Job:
        if name not in jobs:
            jobs[name] = run_job("real.py", 2, *JOBS[name], env=TIMEOUT | HOROVOD_IN_STEPS)
        return jobs[name]

    return get


def values(job: Job, name: str) -> list[Any]:
    return [job.value(name, rank) for rank in RANKS]


@pytest.mark.parametrize(("place", "name"), PLACES, ids=lambda name: name)
def test_has_the_weights_of_the_reference(
    job_of: Callable[[str], Job], place: str, name: str
) -> None:
    job = job_of(place)
    values(job, name)
    assert judging.weights(job.folder, name, len(RANKS)) == []


@pytest.mark.parametrize(("place", "name"), PLACES, ids=lambda name: name)
def test_runs_under_its_plan(job_of: Callable[[str], Job], place: str, name: str) -> None:
    job = job_of(place)
    assert judging.plans(name, values(job, name)) == []
    for rank in RANKS:
        assert NOT_EXECUTED not in job.log(name, rank)


@pytest.mark.parametrize("place", ["training_patterns"])
@pytest.mark.parametrize(
    ("name", "count"), [("recomputed_blocks", 9), ("recomputed_keras_layers", 6)]
)
def test_gradient_that_is_computed_twice_is_all_reduced_once(
    job_of: Callable[[str], Job], place: str, name: str, count: int
) -> None:
    (step,) = job_of(place).value(name)["steps"]
    assert sum(len(names) for _, names in step["groups"]) == count


@pytest.mark.parametrize("place", ["training_patterns"])
def test_unequal_starts_are_logged_in_one_line(job_of: Callable[[str], Job], place: str) -> None:
    log = job_of(place).log("starts_unequal")
    assert log.count("replicated variables from rank 0") == 1


@pytest.mark.parametrize(
    ("place", "name", "variable"),
    [
        ("training_patterns", "unused_head", "'spare'"),
        ("sequences", "masked_language_model", "pooled"),
    ],
)
def test_a_gradient_that_is_none_is_logged_once(
    job_of: Callable[[str], Job], place: str, name: str, variable: str
) -> None:
    lines = [
        line for line in job_of(place).log(name).splitlines() if "computes no gradient for" in line
    ]
    (line,) = lines
    assert variable in line


@pytest.mark.parametrize("place", TRAINED)
def test_every_script_is_tested(job_of: Callable[[str], Job], place: str) -> None:
    assert set(job_of(place).cases(0)) == set(TRAINED[place])


@pytest.mark.parametrize("place", ["rejected"])
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", REFUSED)
def test_is_rejected_in_a_sentence_that_says_what_to_do(
    job_of: Callable[[str], Job], place: str, name: str, rank: int
) -> None:
    message = job_of(place).error(name, rank)
    for part in REFUSED[name]:
        assert part in message


@pytest.mark.parametrize("place", ["rejected"])
def test_gradients_per_example_are_rejected_or_right(
    job_of: Callable[[str], Job], place: str
) -> None:
    for rank in RANKS:
        case = job_of(place).case("gradients_per_example", rank)
        if case["error"] is None:
            assert case["value"]["reported"] < 1e-12
        else:
            assert "jacobian" in case["error"]["message"]


def test_rank_whose_data_end_may_exit_before_the_others_save(run_job: Callable[..., Job]) -> None:
    job = run_job(str(Path(__file__).with_name("worker_ends_early.py")), 2, launcher=launched)
    assert (job.folder / "model.keras").exists()
