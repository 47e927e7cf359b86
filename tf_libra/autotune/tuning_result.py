"""Result of tuning: a plan and its evidence, cached for later jobs, broadcast and displayed."""

import dataclasses
import functools
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from tf_libra.autotune.search.result import Search
from tf_libra.autotune.trial_comparison import Race
from tf_libra.cost_model import (
    CostModel,
    Evidence,
    OverlapSample,
    cost_model_from_json,
    prediction_errors,
)
from tf_libra.cost_model.fit_quality import MAX_MODEL_ERROR
from tf_libra.internal import validation
from tf_libra.simulation import Timeline, simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

_FORMAT = "tf-libra conclusion"
_VERSION = 1


class PlanSource(StrEnum):
    """Origin of the active result."""

    TUNED = "made"  # by this job
    CACHED = "kept"  # by an earlier job
    USER = "given"  # a plan without measurements


@dataclass(frozen=True)
class TuningResult:
    """Plan with the measurements and the model that it rests on.

    Attributes:
        plan: plan to run under.
        profile: measured backward computation; None if the budget was too short.
        cost_model: fitted model; None if there was too little to fit.
        held_out_error: median relative error of predicted steps over held-out plans; None if
          untested.
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

    Raises:
        ValueError: a field is out of its range; named.
    """

    plan: Plan
    profile: BackwardProfile | None = None
    cost_model: CostModel | None = None
    held_out_error: float | None = None
    samples: tuple[OverlapSample, ...] = ()
    notes: tuple[str, ...] = ()
    is_complete: bool = False
    rest_seconds: float | None = None
    race: Race | None = None
    search: Search | None = None
    max_model_error: float = MAX_MODEL_ERROR
    contention: float | None = None
    bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        validation.instance("plan", self.plan, Plan)
        for field, kind in (("profile", BackwardProfile), ("cost_model", CostModel)):
            if getattr(self, field) is not None:
                validation.instance(field, getattr(self, field), kind)
        for field in ("held_out_error", "rest_seconds"):
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, validation.real(field, value, minimum=0))
        most = validation.real("max_model_error", self.max_model_error, above=0)
        object.__setattr__(self, "max_model_error", most)
        if self.contention is not None:
            contention = validation.real("contention", self.contention, minimum=1)
            object.__setattr__(self, "contention", contention)
        if self.bytes_per_second is not None:
            rate = validation.real("bytes_per_second", self.bytes_per_second, above=0)
            object.__setattr__(self, "bytes_per_second", rate)
        object.__setattr__(self, "samples", validation.sequence("samples", self.samples))
        for sample in self.samples:
            validation.instance("samples", sample, OverlapSample)
        notes = validation.sequence("notes", self.notes)
        object.__setattr__(self, "notes", tuple(validation.text("notes", note) for note in notes))
        validation.boolean("is_complete", self.is_complete)
        if self.race is not None:
            validation.instance("race", self.race, Race)
        if self.search is not None:
            validation.instance("search", self.search, Search)

    def predicted(self, plan: Plan) -> Timeline | None:
        """Returns the predicted timeline of a plan; None if nothing can be predicted.

        A prediction needs a profile and a model, and threads that leave some computation under the
        model. All-reduces on several streams have more threads in sum than the model was fitted to.
        """
        if self.profile is None or self.cost_model is None:
            return None
        try:
            return simulate(self.profile, plan, self.cost_model)
        except ValueError:
            return None

    def predicted_step(self, plan: Plan) -> float | None:
        """Returns the predicted seconds of a step under a plan; None if unknown."""
        timeline = None if self.rest_seconds is None else self.predicted(plan)
        if timeline is None or self.rest_seconds is None:
            return None
        return self.rest_seconds + timeline.step_seconds

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
        """Median relative error of an all-reduce over the samples.

        None without a model or samples, as in files of early versions, or if the model cannot
        predict one.
        """
        if self.cost_model is None or not self.samples:
            return None
        try:
            return float(np.median(np.abs(prediction_errors(self.cost_model, self.samples))))
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
        )

    @property
    def is_fitted(self) -> bool:
        """True if there is a model and its error is known."""
        return self.cost_model is not None and self.median_error is not None

    def to_document(self) -> dict[str, Any]:
        """Returns the fields as JSON values, which `from_document` reads back unchanged."""
        profile, model = self.profile, self.cost_model
        return {
            "plan": json.loads(self.plan.to_json()),
            "profile": None if profile is None else json.loads(profile.to_json()),
            "cost_model": None if model is None else json.loads(model.to_json()),
            "held_out_error": self.held_out_error,
            "samples": [dataclasses.asdict(sample) for sample in self.samples],
            "notes": list(self.notes),
            "is_complete": self.is_complete,
            "rest_seconds": self.rest_seconds,
            "race": None if self.race is None else self.race.to_document(),
            "search": None if self.search is None else self.search.to_document(),
            "max_model_error": self.max_model_error,
            "contention": self.contention,
            "bytes_per_second": self.bytes_per_second,
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "TuningResult":
        """Reads the result of `to_document`; a `ValueError` names the field that is wrong."""
        # Files of early versions hold the median error, which follows from the samples.
        known = {name: field for name, field in document.items() if name != "median_error"}
        value = dict(validation.keys("conclusion", known, *validation.field_names(cls)))
        value["plan"] = Plan.from_json(json.dumps(value["plan"]))
        for field, read in (
            ("profile", BackwardProfile.from_json),
            ("cost_model", cost_model_from_json),
        ):
            if value.get(field) is not None:
                value[field] = read(json.dumps(value[field]))
        if value.get("race") is not None:
            value["race"] = Race.from_document(value["race"])
        if value.get("search") is not None:
            value["search"] = Search.from_document(value["search"])
        value["samples"] = validation.items("samples", value.get("samples", ()), OverlapSample)
        return cls(**value)

    def to_json(self) -> str:
        """Returns the result as JSON text, which `from_json` reads back unchanged."""
        return json.dumps({"format": _FORMAT, "version": _VERSION} | self.to_document())

    @classmethod
    def from_json(cls, document: str) -> "TuningResult":
        """Reads the result of `to_json`; a `ValueError` names the field that is wrong."""
        return cls.from_document(validation.json_document(_FORMAT, _VERSION, document))
