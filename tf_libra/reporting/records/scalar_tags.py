"""Names of a training function's scalar series."""

# Scalars per step, in seconds: steady-state steps; first or traced steps of a plan; and for traced
# steps, backward (LIBRA, Eq. 7) and its exposed communication.
STEP_SECONDS = "step_seconds"
DISTURBED_STEP_SECONDS = "disturbed_step_seconds"
BACKWARD_SECONDS = "backward_seconds"
RESIDUAL_SECONDS = "residual_communication_seconds"
# Begin and end of a drift: the median of the steps, and the expected seconds.
DRIFTED_STEP_SECONDS = "drifted_step_seconds"
RETURNED_STEP_SECONDS = "returned_step_seconds"
EXPECTED_STEP_SECONDS = "expected_step_seconds"
# Written once, with the first step: the budget of steps before a plan is active.
MAX_TUNING_STEPS = "max_tuning_steps"
HISTORY = (
    STEP_SECONDS,
    DISTURBED_STEP_SECONDS,
    BACKWARD_SECONDS,
    RESIDUAL_SECONDS,
    DRIFTED_STEP_SECONDS,
    RETURNED_STEP_SECONDS,
    EXPECTED_STEP_SECONDS,
)
