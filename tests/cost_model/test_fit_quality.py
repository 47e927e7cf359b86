"""The evidence for a cost model, in its file."""

import json

import pytest

from tf_libra.cost_model import (
    ContentionModel,
    Evidence,
    ProcessorModel,
    cost_model_from_json,
    evidence_from_json,
)
from tf_libra.cost_model.fit_quality import encode_cost_model

CONTENTION = ContentionModel(8, 1e-5, (1.0, 0.08), (2e9, 1.2e9, 0.4), (2.4e9, 1.3e9, 0.5))
PROCESSOR = ProcessorModel(2, 1e-4, 1e-9)
EVIDENCE = Evidence((4, 1, 2, 2), 60, 0.04, 0.12)


@pytest.mark.parametrize("model", [CONTENTION, PROCESSOR], ids=["contention", "processor"])
def test_document_holds_model_and_evidence(model: ContentionModel | ProcessorModel) -> None:
    text = encode_cost_model(model, EVIDENCE)
    assert cost_model_from_json(text) == model
    assert evidence_from_json(text) == EVIDENCE
    assert EVIDENCE.threads == (1, 2, 4)


def test_document_of_earlier_version_has_no_evidence() -> None:
    assert evidence_from_json(CONTENTION.to_json()) is None


def test_describe_states_errors_and_samples() -> None:
    assert "missed" not in EVIDENCE.describe()
    assert "not seen by 12.0 % in the median" in EVIDENCE.describe()
    assert "(60 samples at r = 1, 2, 4)" in EVIDENCE.describe()
    assert "was not tested" in Evidence().describe()


@pytest.mark.parametrize(
    ("error", "most", "caveat"),
    [
        (0.12, 0.25, ""),
        (0.12, 0.12, ""),
        (0.12, 0.1, "by a model that misses by 12.0 %"),
        (0.26, 0.25, "by a model that misses by 26.0 %"),
        (None, 0.1, ""),
    ],
)
def test_caveat_is_set_above_the_error_limit(error: float | None, most: float, caveat: str) -> None:
    assert Evidence(held_out_error=error, max_model_error=most).caveat == caveat


@pytest.mark.parametrize(
    ("all_reduce", "step", "backward", "is_accurate"),
    [
        (0.10, 0.03, 0.04, True),
        (0.11, 0.03, 0.04, False),
        (0.10, 0.031, 0.04, False),
        (0.10, 0.03, 0.041, False),
        (None, 0.03, 0.04, False),
        (0.10, None, 0.04, False),
        (0.10, 0.03, None, False),
    ],
)
def test_model_is_accurate_only_if_all_errors_are_known_and_small(
    all_reduce: float | None, step: float | None, backward: float | None, is_accurate: bool
) -> None:
    evidence = Evidence(
        median_error=all_reduce, held_out_error=step, held_out_backward_error=backward
    )
    assert evidence.is_accurate == is_accurate


def test_beyond_names_threads_outside_the_sampled_range() -> None:
    assert EVIDENCE.beyond({1, 3, 4}) == ()
    assert EVIDENCE.beyond({8, 2, 16}) == (8, 16)
    assert Evidence((2, 4)).beyond({1}) == (1,)
    assert Evidence().beyond({64}) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"held_out_error": -1}, "evidence: held_out_error must be at least 0"),
        ({"threads": [0]}, "evidence: threads must be from 1"),
        ({"max_model_error": 0}, "evidence: max_model_error must be greater than 0"),
        ({"found": 1}, "evidence has unknown keys"),
    ],
)
def test_malformed_evidence_is_named(change: dict[str, object], words: str) -> None:
    document = json.loads(encode_cost_model(CONTENTION, EVIDENCE))
    document["evidence"] |= change
    with pytest.raises(ValueError, match=words):
        cost_model_from_json(json.dumps(document))
