"""Steps with sharded updates, as the engine knows them: complete, undone or waited for.

A step is complete when the weights that it updates are gathered.
"""

from tf_libra.backends.engine import check_code
from tf_libra.internal import native


def end_call() -> None:
    """Ends the updates of a step, or of several, when a call has ended well."""
    check_code(native.load().c.TfLibraEndCall())


def keep_changes() -> None:
    """Keeps the updates of a step that is not complete."""
    check_code(native.load().c.TfLibraKeepChanges())


def await_steps(seconds: float) -> bool:
    """Waits until each step that has made all its updates is complete.

    Args:
        seconds: longest wait.

    Returns:
        Whether they are; False if one has failed.
    """
    return not native.is_loaded() or bool(native.load().c.TfLibraAwaitSteps(seconds))


def fail_steps() -> None:
    """Keeps all steps that are not complete from completing, as another rank has undone them."""
    check_code(native.load().c.TfLibraFailSteps())


def undo_steps() -> None:
    """Undoes the updates of all steps that are not complete, when a step has failed."""
    if native.is_loaded():
        check_code(native.load().c.TfLibraUndoSteps())


def num_complete_steps() -> int:
    """Returns the number of complete steps since the engine started."""
    return int(native.load().c.TfLibraNumCompleteSteps())


def num_begun_steps() -> int:
    """Returns the number of steps since the engine started, but for those that were undone."""
    return int(native.load().c.TfLibraNumBegunSteps())


def free_spares() -> None:
    """Frees memory of weights in earlier steps, which the next step would use again."""
    if native.is_loaded():
        check_code(native.load().c.TfLibraFreeSpares())
