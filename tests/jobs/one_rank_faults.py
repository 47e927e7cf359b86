"""Faults of one rank for the job `one_rank_trials.py`: failing steps, and memory that is short."""

import contextlib
import itertools
from unittest import mock

import tensorflow as tf

from tf_libra.backends import collective_ops
from tf_libra.model_parallel.execution.stage_executor import StageExecutor
from tf_libra.model_parallel.execution.stage_variables import StageVariables
from tf_libra.model_parallel.partition.guarded_calls import CallGuard
from tf_libra.runtime.family_trials import Turns
from tf_libra.variable_sync.bound_variables import BoundVariable


def failing_after(num_steps):
    """Returns a step of stages whose computations fail after some steps, once they have run."""
    run_step, call, steps = StageExecutor.step, CallGuard.call, itertools.count()

    def fail_after(guard, run, outputs):
        def run_and_fail():
            run()
            raise tf.errors.ResourceExhaustedError(None, None, "no memory")

        return call(guard, run_and_fail, outputs)

    def step(executor, arguments):
        fails = next(steps) >= num_steps
        with mock.patch.object(CallGuard, "call", fail_after if fails else call):
            return run_step(executor, arguments)

    return step


def failing_between_turns():
    """Returns a synchronization that fails if variables of another family's turn are needed.

    There is no memory to receive the first of them, and to assign others.
    """
    synchronize, record, turns = StageVariables.synchronize_with_others, Turns.record, []
    start = collective_ops.receive_start
    error = tf.errors.ResourceExhaustedError(None, None, "no memory")
    broken, starts = mock.Mock(side_effect=error), itertools.count()

    def start_but_once(*args, **options):
        return start(*args, **options) if next(starts) else broken()

    def note(self, seconds):
        turns.append(self.next)
        record(self, seconds)

    def fail(self, captured, together):
        with contextlib.ExitStack() as patches:
            if turns and turns[-1] == "spp":
                patches.enter_context(mock.patch.object(BoundVariable, "assign", broken))
                patches.enter_context(
                    mock.patch.object(collective_ops, "receive_start", start_but_once)
                )
            synchronize(self, captured, together)

    return note, fail
