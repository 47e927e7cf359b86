"""The result of tuning: made once, cached for the next job, sent to all ranks, and shown."""

import dataclasses
import functools
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from tf_libra.autotune.interleaved_trials import Race
from tf_libra.autotune.search.result import Search
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
    """Origin of the active conclusion."""

    MADE = "made"  # by this job
    KEPT = "kept"  # by an earlier one
    GIVEN = "given"  # by the user: a plan alone


@dataclass(frozen=True)
class TuningResult:
    """A plan, and all that it rests on.

    Attributes:
        plan: to run under.
        profile: measured backward computation; None where the budget was too short for one.
        cost_model: fitted; None where there was too little to fit.
        held_out_error: median over the plans that the fit has not seen of the relative error of
            predicted backward time, against the median of a plan's steps; None without such plans.
        samples: everything the model was fitted to.
        notes: what a reader should know, such as a budget that ended early.
        is_complete: whether all experiments were made and observed, and a model fitted.
        rest_seconds: what a step takes besides backward and updates as they are predicted; None
            if that is unknown.
        race: the plans that were run in turns, the active one first; None without a race.
        search: the settings that were searched in steps; None where none were.
        max_model_error: beyond this `held_out_error` the model is not trusted.
        contention: gamma of ASC-WFBP as measured, how many times longer a byte takes while two
            all-reduces run concurrently; None if none did.
        bytes_per_second: that a worker sent in an all-reduce which nothing overlapped; None where
            none was measured.

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

        Nothing can be predicted without a profile or a model, or if the model leaves computation
        nothing next to so many concurrent threads: it was fitted to fewer, and all-reduces on
        several streams have more in sum.
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

    def renewed(self, plan: Plan) -> Plan:
        """A plan of before, with what is predicted of it now, and without what was noted then."""
        timeline = self.predicted(plan)
        seconds = None if timeline is None else timeline.backward_seconds
        return dataclasses.replace(plan, notes=(), predicted_seconds=seconds)

    def after(self, race: Race) -> "TuningResult":
        """The same with the winner's plan, if there was a race to speak of."""
        if race.num_rounds == 0:
            return self
        plan, notes = race.winner.plan, (race.describe(), *self.notes)
        new = tuple(note for note in notes if note not in plan.notes)
        plan = dataclasses.replace(plan, notes=(*plan.notes, *new))
        return dataclasses.replace(self, plan=plan, race=race, notes=notes)

    @functools.cached_property
    def median_error(self) -> float | None:
        """Median relative error of an all-reduce over the samples.

        None without a model or samples, as of a plan that the first versions have kept, and where
        the model says nothing of one of them.
        """
        if self.cost_model is None or not self.samples:
            return None
        try:
            return float(np.median(np.abs(prediction_errors(self.cost_model, self.samples))))
        except ValueError:
            return None

    @property
    def evidence(self) -> Evidence:
        """The evidence that the model rests on."""
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
        """True if there is a model, and it is known how well it fits."""
        return self.cost_model is not None and self.median_error is not None

    def to_document(self) -> dict[str, Any]:
        """Its fields as JSON values; `from_document` reads them back unchanged."""
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
        """Reads what `to_document` wrote; `ValueError` names what is wrong with it."""
        # Earlier versions kept the median error, too, which follows from the samples.
        known = {name: one for name, one in document.items() if name != "median_error"}
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
        """Returns it as JSON text; `from_json` reads it back unchanged."""
        return json.dumps({"format": _FORMAT, "version": _VERSION} | self.to_document())

    @classmethod
    def from_json(cls, document: str) -> "TuningResult":
        """Reads it from JSON text; `ValueError` names what is wrong with it."""
        return cls.from_document(validation.json_document(_FORMAT, _VERSION, document))
