"""State for Horovod's elastic mode with TensorFlow 2.

`hvd.elastic.TensorFlowState` broadcasts its variables when it is created, which a joining worker
does alone, and not when states are synchronized, so with TensorFlow 2 a job cannot grow. The state
here broadcasts when states are synchronized.
"""

from collections.abc import Iterable
from typing import Any

from tf_libra.capture.variables import plain
from tf_libra.coordination.horovod_job import import_horovod
from tf_libra.variable_sync import elastic_hooks as commits

hvd = import_horovod()  # first, as its error names the extra
from horovod.common.elastic import ObjectState  # noqa: E402


class TensorFlowState(ObjectState):
    """Variables and named attributes that are committed and restored together.

        state = tf_libra.elastic.TensorFlowState(variables, step=0)

        @hvd.elastic.run
        def train(state):
            while state.step < 1000:
                train_step(...)
                state.step += 1
                if state.step % 10 == 0:
                    state.commit()

    After workers are lost, the others go on from the last commit. Joining workers take over the
    state of rank 0. Build the optimizer first, since its variables do not exist before. Commits
    synchronize variables that model-parallel steps train.
    """

    def __init__(self, variables: Iterable[Any], **kwargs: Any) -> None:
        """Commits the present values.

        Args:
            variables: `tf.Variable`s or Keras variables, the same on every worker.
            **kwargs: attributes of the state, of types that can be pickled.
        """
        self.variables = [plain(variable) for variable in variables]
        self._save()
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, **kwargs)

    def save(self) -> None:
        """Commits variables and attributes; all ranks call it."""
        self._save()
        super().save()

    def restore(self) -> None:
        """Goes back to the last commit."""
        with commits.restoring(self.variables):
            for variable, value in zip(self.variables, self._saved, strict=True):
                variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Takes over rank 0's variables and attributes, and commits them."""
        commits.synchronize_all_ranks()
        super().save()  # else rank 0's variables would be ahead of its attributes
        hvd.broadcast_variables(self.variables, root_rank=0)
        self._save()
        super().sync()

    def _save(self) -> None:
        commits.synchronize_all_ranks()
        self._saved = [variable.numpy() for variable in self.variables]
