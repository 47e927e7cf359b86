"""Idle gaps of a step, and the choice to limit a background job to them.

A model-parallel step waits for other ranks at known points. DeepPool runs background jobs in such
idle times of bursts (section 3.1). Outside of these gaps a background job costs more, so it
overlaps whole steps only if that cost is small.
"""

from tf_libra.background_jobs.throttle import Throttle

# Least previous length of a wait, in seconds, that pays for resuming and pausing the job.
_SHORTEST_SECONDS = 1e-3
# Least share of a step's time in gaps at which a background job is limited to gaps.
_WORTH_IT = 0.1
# Cycles in gaps at full duty before a trial of overlapping whole steps.
_GOES_WELL = 4
# Overlapped steps that are needed to judge the cost.
_KNOWN = 8


class IdleGaps:
    """Lengths of a step's waits.

    Attributes:
        share: usable waits as a share of the last step's time.
    """

    def __init__(self) -> None:
        """Start without known waits."""
        self.share = 0.0
        self._last: dict[str, float] = {}
        self._waited = 0.0

    def is_long(self, what: str) -> bool:
        """Return True if the last wait of this kind was long enough to use."""
        return self._last.get(what, 0.0) >= _SHORTEST_SECONDS

    def record(self, what: str, seconds: float) -> None:
        """Record the length of a wait for `what`."""
        self._last[what] = seconds
        if seconds >= _SHORTEST_SECONDS:
            self._waited += seconds

    def record_step(self, seconds: float) -> None:
        """Record the length of the step that contains the recorded waits."""
        self.share = min(self._waited / seconds, 1.0) if seconds > 0 else 0.0
        self._waited = 0.0


class SchedulingMode:
    """Scheduling mode of a background job: in gaps only, or overlapping whole steps.

    A job with gaps begins in gaps. If that costs little at full duty, the job overlaps whole steps
    on trial. If whole steps cost too much for full duty, the job stays in gaps permanently.
    """

    def __init__(self, throttle: Throttle) -> None:
        """Start with overlapping whole steps, as no gap is known yet."""
        self._throttle = throttle
        self._in_gaps = False
        self._begins_in_gaps = True
        self._may_overlap = True
        self._went_well = 0
        self._known = (0, 0.0)  # judged steps and their loss when whole steps began

    @property
    def in_gaps(self) -> bool:
        """True if the job is limited to gaps."""
        return self._in_gaps

    def planned(self, share_of_gaps: float) -> None:
        """Choose the mode after a cycle is planned, from the share of a step in gaps."""
        if share_of_gaps < _WORTH_IT and not self._in_gaps:
            return
        if self._begins_in_gaps:
            self._begins_in_gaps, self._in_gaps = False, True
        elif self._in_gaps:
            self._went_well = self._went_well + 1 if self._throttle.duty == 1.0 else 0
            if self._may_overlap and self._went_well >= _GOES_WELL:
                self._change(False)
        elif self._costs_too_much():
            self._may_overlap = False
            self._change(True)

    def _costs_too_much(self) -> bool:
        count, lost = (
            now - then for now, then in zip(self._throttle.evaluated, self._known, strict=True)
        )
        return count >= _KNOWN and lost / count > self._throttle.always

    def _change(self, in_gaps: bool) -> None:
        self._in_gaps = in_gaps
        self._went_well = 0
        self._known = self._throttle.evaluated
        self._throttle.restart()
