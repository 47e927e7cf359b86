"""State for Horovod's elastic mode, with TensorFlow 2.

`hvd.elastic.TensorFlowState` broadcasts its variables when it is made, which a worker that joins
does alone, and not when states are synchronised; so in TensorFlow 2 a job cannot grow with it. This
one does it the other way round.
"""

from collections.abc import Iterable
from typing import Any

import horovod.tensorflow as hvd
from horovod.common.elastic import ObjectState

from tf_libra.capture.variables import plain
from tf_libra.variable_sync import elastic_hooks as commits


class TensorFlowState(ObjectState):
    """Variables, and other things by name, that are committed and restored together.

        state = tf_libra.elastic.TensorFlowState(variables, step=0)

        @hvd.elastic.run
        def train(state):
            while state.step < 1000:
                train_step(...)
                state.step += 1
                if state.step % 10 == 0:
                    state.commit()

    When workers are lost, the others go on from the last commit; when workers join, they take over
    the state of rank 0. The variables of an optimizer that is not built do not exist yet: build it
    first. What ranks train in stages is brought up to date on all of them before it is committed.
    """

    def __init__(self, variables: Iterable[Any], **kwargs: Any) -> None:
        """Commits the variables as they are.

        Args:
            variables: `tf.Variable`s or Keras variables, the same on every worker.
            **kwargs: attributes of the state, of any type that can be pickled.
        """
        self.variables = [plain(variable) for variable in variables]
        self._keep()
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, **kwargs)

    def save(self) -> None:
        """Commits variables and attributes; all ranks call it."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Goes back to the last commit."""
        commits.get_ready(self.variables)
        for variable, value in zip(self.variables, self._kept, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Takes over rank 0's variables and attributes, and commits them."""
        commits.synchronize_all_ranks()
        super().save()  # what rank 0 has now: else variables alone were ahead of the last commit
        hvd.broadcast_variables(self.variables, root_rank=0)
        self._keep()
        super().sync()

    def _keep(self) -> None:
        commits.synchronize_all_ranks()
        self._kept = [variable.numpy() for variable in self.variables]
