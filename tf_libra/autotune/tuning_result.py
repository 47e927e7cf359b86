"""Result of tuning: a plan and its evidence, cached for later jobs, broadcast and displayed."""

import dataclasses
import functools
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from tf_libra.autotune.search.result import Search
from tf_libra.autotune.trial_comparison import Race
from tf_libra.cost_model import (
    CostModel,
    Evidence,
    OverlapSample,
    median_error,
)
from tf_libra.cost_model.fit_quality import MAX_MODEL_ERROR
from tf_libra.internal import validation
from tf_libra.internal.codec import Document
from tf_libra.internal.values import AtLeastOne, NonNegative, Positive
from tf_libra.planning.one_worker import OneWorkerComparison, compare_with_one_worker
from tf_libra.simulation import Timeline, simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


class PlanSource(StrEnum):
    """Origin of the active result."""

    TUNED = "made"  # by this job
    CACHED = "kept"  # by an earlier job
    USER = "given"  # a plan without measurements


@dataclass(frozen=True)
class TuningResult(Document):
    """Plan with the measurements and the model that it rests on.

    Attributes:
        plan: plan to run under.
        profile: measured backward computation; None if the budget was too short.
        cost_model: fitted model; None if there was too little to fit.
        held_out_error: median relative error of predicted steps over held-out plans; None if
          untested.
        held_out_backward_error: the same for backward; None if untested.
        samples: samples that the model was fitted to.
        notes: notes for users, such as a budget that ended early.
        is_complete: True if all trials were made and observed, and a model was fitted.
        rest_seconds: predicted seconds of a step outside backward and the updates; None if unknown.
        race: race that the plan won; None without a race.
        search: settings that a search measured; None without a search.
        max_model_error: `held_out_error` above which the model is not trusted.
        contention: measured gamma of ASC-WFBP, the factor on a byte's time in two concurrent
            all-reduces; None if not measured.
        bytes_per_second: send rate of a worker in an all-reduce without overlap; None if not
          measured.
        whole_updates: names of tensors whose updates every rank makes, also under a plan with
          gathers.

    Raises:
        ValueError: a field is out of its range; named.
    """

    plan: Plan
    profile: BackwardProfile | None = None
    cost_model: CostModel | None = None
    held_out_error: NonNegative | None = None
    samples: tuple[OverlapSample, ...] = ()
    notes: tuple[str, ...] = ()
    is_complete: bool = False
    rest_seconds: NonNegative | None = None
    race: Race | None = None
    search: Search | None = None
    max_model_error: Positive = MAX_MODEL_ERROR
    contention: AtLeastOne | None = None
    bytes_per_second: Positive | None = None
    held_out_backward_error: NonNegative | None = None
    whole_updates: tuple[str, ...] = ()

    FORMAT: ClassVar = "tf-libra conclusion"
    SPARSE: ClassVar = ("whole_updates",)

    @property
    def whole_profile(self) -> BackwardProfile | None:
        """The profile with `rest_seconds`, a part of which is the forward pass under gathers."""
        if self.profile is None or self.profile.rest_seconds is not None:
            return self.profile
        return dataclasses.replace(self.profile, rest_seconds=self.rest_seconds)

    def predicted(self, plan: Plan) -> Timeline | None:
        """Returns the predicted timeline of a plan; None if nothing can be predicted.

        A prediction needs a profile and a model, and threads that leave some computation under the
        model. All-reduces on several streams have more threads in sum than the model was fitted to.
        """
        profile = self.whole_profile
        if profile is None or self.cost_model is None:
            return None
        try:
            return simulate(profile, plan, self.cost_model, self.whole_updates)
        except ValueError:
            return None

    def predicted_step(self, plan: Plan) -> float | None:
        """Returns the predicted seconds of a step under a plan; None if unknown."""
        timeline = None if self.rest_seconds is None else self.predicted(plan)
        if timeline is None or self.rest_seconds is None:
            return None
        return self.rest_seconds + timeline.step_seconds

    def compare_with_one_worker(
        self, step_seconds: float | None = None, alone_seconds: float | None = None
    ) -> OneWorkerComparison | None:
        """Compares the plan with one worker on the joint batch; None if a step was not measured.

        Args:
          step_seconds: measured step; None: that of the trials, or else the prediction.
          alone_seconds: measured step of one worker; None: its upper bound.
        """
        profile = self.whole_profile
        if profile is None or self.cost_model is None or self.rest_seconds is None:
            return None
        if step_seconds is None and self.race is not None:
            step_seconds = self.race.winner.median_seconds
        is_trusted = not self.evidence.caveat
        if step_seconds is None and not is_trusted:
            return None
        return compare_with_one_worker(
            profile,
            self.plan,
            self.cost_model,
            self.rest_seconds,
            step_seconds,
            is_trusted,
            alone_seconds,
        )

    def with_prediction(self, plan: Plan) -> Plan:
        """Returns an earlier plan with this result's prediction and without its notes."""
        timeline = self.predicted(plan)
        seconds = None if timeline is None else timeline.backward_seconds
        return dataclasses.replace(plan, notes=(), predicted_seconds=seconds)

    def with_race(self, race: Race) -> "TuningResult":
        """Returns the result with the winner's plan; unchanged without a complete round."""
        if race.num_rounds == 0:
            return self
        plan, notes = race.winner.plan, (race.describe(), *self.notes)
        new = tuple(note for note in notes if note not in plan.notes)
        plan = dataclasses.replace(plan, notes=(*plan.notes, *new))
        return dataclasses.replace(self, plan=plan, race=race, notes=notes)

    @functools.cached_property
    def median_error(self) -> float | None:
        """Median relative error of overlapped or of exclusive all-reduces, whichever is larger.

        None without a model or samples, as in files of early versions, or if the model cannot
        predict one.
        """
        if self.cost_model is None or not self.samples:
            return None
        try:
            return median_error(self.cost_model, self.samples)
        except ValueError:
            return None

    @property
    def evidence(self) -> Evidence:
        """Evidence that the model rests on."""
        threads = tuple(sample.num_threads for sample in self.samples)
        return Evidence(
            threads,
            len(self.samples),
            self.median_error,
            self.held_out_error,
            self.max_model_error,
            self.held_out_backward_error,
        )

    @property
    def is_fitted(self) -> bool:
        """True if there is a model and its error is known."""
        return self.cost_model is not None and self.median_error is not None

    @classmethod
    def from_fields(cls, name: str, fields: Any) -> "TuningResult":
        """Builds a result from its JSON values; a `ValueError` names the field that is wrong."""
        fields = dict(validation.mapping(name, fields))
        fields.pop("median_error", None)  # in files of early versions; follows from the samples
        return super().from_fields(name, fields)
