"""Options that a user may pass to `optimize`, checked before anything runs."""

from tf_libra.config.common_options import Options, declared, resolve_as
from tf_libra.config.option_groups import Faults, Tuning
from tf_libra.config.option_spec import Option, with_option_signature
from tf_libra.config.options import DataParallelOptions, OptimizeKwargs, resolve
from tf_libra.config.validators import TIMEOUT_VARIABLE, load_document, load_plan, plan_format

__all__ = [
    "TIMEOUT_VARIABLE",
    "DataParallelOptions",
    "Faults",
    "OptimizeKwargs",
    "Option",
    "Options",
    "Tuning",
    "declared",
    "load_document",
    "load_plan",
    "plan_format",
    "resolve",
    "resolve_as",
    "with_option_signature",
]
