"""Fit quality of a cost model, stored in its file for later planning."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from tf_libra.cost_model.base import CostModel
from tf_libra.internal import formatting, validation

KEY = "evidence"  # in a cost model's JSON
MAX_MODEL_ERROR = 0.25  # of steps under plans that the fit has not seen, by default


@dataclass(frozen=True)
class Evidence:
    """Samples that a model was fitted to, and its errors.

    Attributes:
      threads: sampled numbers of communication threads; the model extrapolates outside of them.
      num_samples: number of all-reduces in the fit.
      median_error: median relative error of an all-reduce over the samples; None if unknown.
      held_out_error: median relative error of steps under plans that the fit has not seen; None
        if no such plan was measured.
      max_model_error: largest `held_out_error` of a trusted model.

    Raises:
      ValueError: a field is out of its range; named.
    """

    threads: tuple[int, ...] = ()
    num_samples: int = 0
    median_error: float | None = None
    held_out_error: float | None = None
    max_model_error: float = MAX_MODEL_ERROR

    def __post_init__(self) -> None:
        threads = validation.integers("threads", self.threads, 1, validation.MAX_INT32)
        object.__setattr__(self, "threads", tuple(sorted(set(threads))))
        object.__setattr__(self, "num_samples", validation.integer("num_samples", self.num_samples))
        for field in ("median_error", "held_out_error"):
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, validation.real(field, value, minimum=0))
        most = validation.real("max_model_error", self.max_model_error, above=0)
        object.__setattr__(self, "max_model_error", most)

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
            f"{error}, and an all-reduce by {formatting.percent(self.median_error)}"
            f" ({self.num_samples}"
            f" samples at r = {', '.join(map(str, self.threads))})"
        )

    def beyond(self, num_threads: set[int]) -> tuple[int, ...]:
        """Return the given numbers of threads that lie outside of the sampled range."""
        if not self.threads:
            return ()
        low, high = self.threads[0], self.threads[-1]
        return tuple(sorted(r for r in num_threads if not low <= r <= high))


def written(model: CostModel, evidence: Evidence) -> str:
    """Return the model as JSON text with its evidence; both readers accept it."""
    document = json.loads(model.to_json())
    return json.dumps(document | {KEY: dataclasses.asdict(evidence)}, indent=1)


def evidence_of(document: dict[str, Any]) -> Evidence | None:
    """Return the evidence in a parsed model, None without any; malformed is a `ValueError`."""
    if document.get(KEY) is None:
        return None
    return validation.built(KEY, document[KEY], Evidence)


def evidence_from_json(document: str) -> Evidence | None:
    """Return the evidence in the JSON text of a valid model."""
    return evidence_of(json.loads(document))
