"""The series of scalars of a training function, by name."""

# What is written per step, as scalars in seconds: steps as usual; steps that were a plan's first
# or traced; and of traced steps, what LIBRA's Eq. 7 sums up and what of it is communication alone.
STEP_SECONDS = "step_seconds"
DISTURBED_STEP_SECONDS = "disturbed_step_seconds"
BACKWARD_SECONDS = "backward_seconds"
RESIDUAL_SECONDS = "residual_communication_seconds"
# Where steps have left what was expected of them, and where they are back: what they take in the
# median then, and what is expected.
DRIFTED_STEP_SECONDS = "drifted_step_seconds"
RETURNED_STEP_SECONDS = "returned_step_seconds"
EXPECTED_STEP_SECONDS = "expected_step_seconds"
# Written once, with the first step: how many may go by before a plan is in force.
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
