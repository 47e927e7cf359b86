"""Files of a burst plan in its log directory: the planner's input, the plan, and a picture.

Rank 0 writes. A file that cannot be written is no reason to end the training: it is logged once.
"""

import logging
from pathlib import Path

from tf_libra.reporting.logdir_files import documents, draw, write
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.scaling_profile import ScalingProfile

_NAMES = ("burst", "scaling")


def write_planned(
    plan: BurstPlan,
    profile: ScalingProfile | None,
    logdir: Path,
    function: str,
    log: logging.Logger,
) -> None:
    """Writes what `tf-libra burst` reads, burst.json and scaling.json, and burst.svg.

    The picture needs Matplotlib, and is left out without it.

    Args:
        plan: the burst plan.
        profile: measured layers; None for a user-provided plan.
        logdir: the log directory.
        function: name of the training function; the first one in a process has the plain names.
        log: receives a warning if a file cannot be written.
    """
    paths, told = documents(logdir, function, _NAMES)
    if told:
        log.info("%s", told)
    texts = {paths["burst"]: plan.to_json()}
    if profile is not None:
        texts[paths["scaling"]] = profile.to_json()
    write(texts, log)

    def plot() -> None:
        from tf_libra.model_parallel.simulation.burst_plot import plot_burst

        plot_burst([(plan.strategy, plan)], paths["burst"].with_suffix(".svg"))

    draw("burst.svg", plot, log)
