"""Options that a user may pass to `optimize`, checked before anything runs."""

from tf_libra.config.asked import OptimizeKwargs
from tf_libra.config.given import reject_unsupported_options, resolve
from tf_libra.config.option_spec import BURSTS, DATA_PARALLELISM, PIPELINES, Option
from tf_libra.config.options import Faults, Options, Tuning, declared, most_threads
from tf_libra.config.signature import with_option_signature
from tf_libra.config.validators import TIMEOUT_VARIABLE, load_burst_plan, load_plan

__all__ = [
    "BURSTS",
    "DATA_PARALLELISM",
    "PIPELINES",
    "TIMEOUT_VARIABLE",
    "Faults",
    "OptimizeKwargs",
    "Option",
    "Options",
    "Tuning",
    "declared",
    "load_burst_plan",
    "load_plan",
    "most_threads",
    "reject_unsupported_options",
    "resolve",
    "with_option_signature",
]
