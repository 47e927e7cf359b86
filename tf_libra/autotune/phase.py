"""The phases in the life of a training function."""

from enum import StrEnum


class Phase(StrEnum):
    """Phase of a training function."""

    TRACE = "trace"
    MEASURE = "measure"
    SAMPLE = "sample"
    FIT = "fit"
    PLAN = "plan"
    SEARCH = "search"
    RACE = "race"
    RUN = "run"
    PASS_THROUGH = "pass-through"
