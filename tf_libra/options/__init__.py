"""What a user may ask of `optimize`, checked before anything runs."""

from tf_libra.options.asked import Asked
from tf_libra.options.given import refuse_others, resolve
from tf_libra.options.option import BURSTS, DATA_PARALLELISM, PIPELINES, Option
from tf_libra.options.options import Faults, Options, Tuning, declared, most_threads
from tf_libra.options.signature import takes_all_options
from tf_libra.options.values import TIMEOUT_VARIABLE, load_burst_plan, load_plan

__all__ = [
    "BURSTS",
    "DATA_PARALLELISM",
    "PIPELINES",
    "TIMEOUT_VARIABLE",
    "Asked",
    "Faults",
    "Option",
    "Options",
    "Tuning",
    "declared",
    "load_burst_plan",
    "load_plan",
    "most_threads",
    "refuse_others",
    "resolve",
    "takes_all_options",
]
