"""Idle gaps of a step, and the choice to limit a background job to them.

DeepPool's background uses the idle time of bursts (section 2). A model-parallel step waits for
other ranks at known points. Outside of these gaps a background job costs more, and runs only if
that cost is small.
"""

from tf_libra.background_jobs.throttle import Throttle

# Least previous wait of a gap that justifies the two signals that use it.
_SHORTEST_SECONDS = 1e-3
# Least share of a step in gaps that limits a background job to gaps.
_WORTH_IT = 0.1
# Successful cycles in gaps before a trial of overlapping whole steps.
_GOES_WELL = 4
# Overlapped steps that determine the cost.
_KNOWN = 8


class IdleGaps:
    """Lengths of a step's waits.

    Attributes:
        share: share of the last step in usable waits.
    """

    def __init__(self) -> None:
        """Start without waits."""
        self.share = 0.0
        self._last: dict[str, float] = {}
        self._waited = 0.0

    def is_long(self, what: str) -> bool:
        """Return True if a wait is usable, by the length of its last occurrence."""
        return self._last.get(what, 0.0) >= _SHORTEST_SECONDS

    def took(self, what: str, seconds: float) -> None:
        """Record the length of a wait for `what`."""
        self._last[what] = seconds
        if seconds >= _SHORTEST_SECONDS:
            self._waited += seconds

    def step_took(self, seconds: float) -> None:
        """Record the length of the step with these waits."""
        self.share = min(self._waited / seconds, 1.0) if seconds > 0 else 0.0
        self._waited = 0.0


class SchedulingMode:
    """Scheduling mode of a background job: in gaps only, or overlapping whole steps.

    The job begins in gaps, if there are any. If that costs little at full duty, whole steps are
    tried. If those cost too much for full duty, the job stays in gaps permanently.
    """

    def __init__(self, pacing: Throttle) -> None:
        """Start in whole steps, as no gap is known."""
        self._pacing = pacing
        self._in_gaps = False
        self._begins_in_gaps = True
        self._may_be_beside = True
        self._went_well = 0
        self._known = (0, 0.0)  # judged steps and their loss at the start of whole steps

    @property
    def in_gaps(self) -> bool:
        """True if the job is limited to gaps."""
        return self._in_gaps

    def planned(self, share_of_gaps: float) -> None:
        """Choose the mode for a planned cycle, from the share of a step in gaps."""
        if share_of_gaps < _WORTH_IT and not self._in_gaps:
            return
        if self._begins_in_gaps:
            self._begins_in_gaps, self._in_gaps = False, True
        elif self._in_gaps:
            self._went_well = self._went_well + 1 if self._pacing.duty == 1.0 else 0
            if self._may_be_beside and self._went_well >= _GOES_WELL:
                self._change(False)
        elif self._costs_too_much():
            self._may_be_beside = False
            self._change(True)

    def _costs_too_much(self) -> bool:
        count, lost = (
            now - then for now, then in zip(self._pacing.judged, self._known, strict=True)
        )
        return count >= _KNOWN and lost / count > self._pacing.always

    def _change(self, in_gaps: bool) -> None:
        self._in_gaps = in_gaps
        self._went_well = 0
        self._known = self._pacing.judged
        self._pacing.begins_anew()
