"""Fit quality of a cost model: samples and errors, also in the JSON documents of models."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

from tf_libra.cost_model.base import CostModel
from tf_libra.cost_model.contention import ContentionModel
from tf_libra.internal import formatting, validation
from tf_libra.internal.values import Natural, NonNegative, Positive, Value

# Default limit on the error of steps under plans that the fit has not seen.
MAX_MODEL_ERROR = 0.25
# Largest median errors of an accurate model, on an all-reduce, on backward and on a step. All three
# count: steps are often predicted well because errors on their parts cancel.
ACCURATE_ALL_REDUCE, ACCURATE_BACKWARD, ACCURATE_STEP = 0.10, 0.04, 0.03
_EVIDENCE = "evidence"


def _distinct_threads(field: str, value: Any) -> tuple[int, ...]:
    return tuple(sorted(set(validation.integers(field, value, 1, validation.MAX_INT32))))


@dataclass(frozen=True)
class Evidence(Value):
    """Samples that a model was fitted to, and its errors.

    Attributes:
      threads: sampled numbers of communication threads; the model extrapolates outside of them.
      num_samples: number of all-reduces in the fit.
      median_error: median relative error of overlapped or of exclusive all-reduces over the
        samples, whichever is larger; None if unknown.
      held_out_error: median relative error of steps under plans that the fit has not seen; None
        if no such plan was measured.
      max_model_error: largest `held_out_error` of a trusted model.
      held_out_backward_error: median relative error of backward under plans that the fit has not
        seen; None if unknown.

    Raises:
      ValueError: a field is out of its range; named.
    """

    threads: Annotated[tuple[int, ...], _distinct_threads] = ()
    num_samples: Natural = 0
    median_error: NonNegative | None = None
    held_out_error: NonNegative | None = None
    max_model_error: Positive = MAX_MODEL_ERROR
    held_out_backward_error: NonNegative | None = None

    @property
    def is_accurate(self) -> bool:
        """True if the errors on all-reduces, on backward and on steps are known and small."""
        limits = (
            (self.median_error, ACCURATE_ALL_REDUCE),
            (self.held_out_backward_error, ACCURATE_BACKWARD),
            (self.held_out_error, ACCURATE_STEP),
        )
        return all(error is not None and error <= limit for error, limit in limits)

    @property
    def caveat(self) -> str:
        """Heading for predictions of a model that is not trusted; empty if it is trusted."""
        if self.held_out_error is None or self.held_out_error <= self.max_model_error:
            return ""
        return f"by a model that misses by {formatting.percent(self.held_out_error)}"

    def describe(self) -> str:
        """Describe the model's errors in one sentence."""
        error = (
            "the model was not tested on plans that its fit has not seen"
            if self.held_out_error is None
            else "the model misses steps under plans that its fit has not seen by"
            f" {formatting.percent(self.held_out_error)} in the median"
        )
        if self.median_error is None:
            return error
        return (
            f"{error}, and overlapped or exclusive all-reduces by"
            f" {formatting.percent(self.median_error)} ({self.num_samples}"
            f" samples at r = {', '.join(map(str, self.threads))})"
        )

    def beyond(self, num_threads: set[int]) -> tuple[int, ...]:
        """Returns the given numbers of threads that lie outside of the sampled range."""
        if not self.threads:
            return ()
        low, high = self.threads[0], self.threads[-1]
        return tuple(sorted(r for r in num_threads if not low <= r <= high))


def encode_cost_model(model: CostModel, evidence: Evidence) -> str:
    """Returns the model as JSON text with its evidence; both readers accept it."""
    return json.dumps(model.to_document() | {_EVIDENCE: evidence.to_document()}, indent=1)


def cost_model_from_json(document: Any) -> CostModel:
    """Read a cost model from its JSON text; a `ValueError` names the field that is wrong."""
    value = validation.json_object(ContentionModel.FORMAT, document)
    _decode_evidence(value)
    return CostModel.from_document({k: field for k, field in value.items() if k != _EVIDENCE})


def evidence_from_json(document: str) -> Evidence | None:
    """Read the evidence in the JSON text of a valid model; None without any."""
    return _decode_evidence(json.loads(document))


def _decode_evidence(document: dict[str, Any]) -> Evidence | None:
    evidence = document.get(_EVIDENCE)
    return None if evidence is None else Evidence.parse(_EVIDENCE, evidence)
