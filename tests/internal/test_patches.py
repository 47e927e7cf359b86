"""Everything that is replaced is put back, and what others have put there stays."""

import contextlib
import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.capture.traces import chain, loss_of, traced
from tf_libra.capture import horovod_interception, variables
from tf_libra.capture.gradient_interception import intercept_gradients
from tf_libra.internal import patches, patching
from tf_libra.internal.patches import OF_TRACES, TABLE, Patch

_ABSENT = object()
PACKAGE = Path(patches.__file__).parents[1]
EVERY = pytest.mark.parametrize("patch", TABLE, ids=lambda patch: patch.path)


pytestmark = pytest.mark.usefixtures("horovod")


def standing(patch: Patch) -> Any:
    """Returns the owner's own attribute, as it was before any look-up."""
    return vars(patch.find_owner()).get(patch.name, _ABSENT)


def found(patch: Patch) -> Callable[..., Any]:
    found = getattr(patch.find_owner(), patch.name)
    assert callable(found)
    return found


def echo(original: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: ("ours", args, kwargs)


@EVERY
def test_table_says_what_is_there(patch: Patch) -> None:
    importlib.import_module(patch.module)
    assert patch.exists() is not patch.adds
    assert patch.why and patch.since and patch.reentry


def test_table_has_each_attribute_once() -> None:
    assert len({(patch.module, patch.path) for patch in TABLE}) == len(TABLE)


@EVERY
@pytest.mark.parametrize("fails", [False, True])
def test_is_put_back(patch: Patch, fails: bool) -> None:
    before = standing(patch)
    with contextlib.suppress(KeyError), patching.replaced(patch, echo):
        assert standing(patch) is not before
        assert found(patch)(1, b=2)[0] == "ours"
        if fails:
            raise KeyError("a mistake of the user's")
    assert standing(patch) is before


@EVERY
def test_patches_of_other_libraries_stay_and_call_through(patch: Patch) -> None:
    before = standing(patch)
    owner = patch.find_owner()
    calls: list[str] = []

    def instead(original: Any) -> Callable[..., Any]:
        return lambda *args: calls.append("ours")

    with contextlib.ExitStack() as put_back:
        with patching.replaced(patch, instead):
            inner = found(patch)

            def theirs(*args: Any) -> Any:
                calls.append("theirs")
                return inner(*args)

            setattr(owner, patch.name, theirs)
            put_back.callback(lambda: setattr(owner, patch.name, before))
            if before is _ABSENT:
                put_back.pop_all()
                put_back.callback(lambda: delattr(owner, patch.name))
            found(patch)()
        assert standing(patch) is theirs
        assert calls == ["theirs", "ours"]
        if not patch.adds:
            # What was ours calls what stood there before, whatever that says of such arguments.
            with contextlib.suppress(Exception):
                found(patch)()
            assert calls == ["theirs", "ours", "theirs"]
            assert inner.__wrapped__ == getattr(before, "__func__", before) or before is _ABSENT
    assert standing(patch) is before


@EVERY
def test_is_replaced_again_inside(patch: Patch) -> None:
    before = standing(patch)
    with patching.replaced(patch, echo):
        outer = standing(patch)
        with patching.replaced(patch, lambda _: lambda *args: "inner"):
            assert found(patch)() == "inner"
        assert standing(patch) is outer
    assert standing(patch) is before


@pytest.mark.parametrize("fails", [False, True])
def test_a_trace_leaves_nothing_replaced(fails: bool) -> None:
    before = [standing(patch) for patch in TABLE]
    with (
        contextlib.suppress(KeyError),
        intercept_gradients("step") as marks,
        horovod_interception.intercept_reductions("step", marks),
        variables.optimizer_variables_outside_trace(),
    ):
        replaced = [standing(patch) for patch in TABLE]
        if fails:
            raise KeyError("a mistake of the user's")
    assert not [
        patch.path
        for patch, original, other in zip(TABLE, before, replaced, strict=True)
        if (original is other) is (patch in OF_TRACES)
    ]
    assert [standing(patch) for patch in TABLE] == before


def _of_ours() -> set[str]:
    """Attributes of modules and classes of theirs that hold functions of ours."""
    theirs = ("tensorflow", "keras", "horovod")
    owners = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] in theirs]
    owners += [
        var for owner in owners for var in list(vars(owner).values()) if isinstance(var, type)
    ]
    return {
        name
        for owner in owners
        for name, var in list(vars(owner).items())
        if isinstance(var, types.FunctionType) and str(PACKAGE) in var.__code__.co_filename
    }


def test_nothing_is_replaced_that_the_table_does_not_have() -> None:
    """A patch that replaces more while a step is traced has to be entered there."""
    assert _of_ours() == set()
    layers, seen = chain(), set()

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        seen.update(_of_ours())
        return tape.gradient(loss, layers)

    traced(step)
    assert "gradient" in seen
    assert seen <= {patch.name for patch in TABLE}
    assert _of_ours() == set()


def test_gradients_are_averaged_through_what_others_have_put_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A profiler, say, that wraps `gradient` while the step is traced, and never goes again."""
    layers, seen = chain(), []

    def step(inputs: tf.Tensor) -> Any:
        inner = tf.GradientTape.gradient

        def watched(*args: Any, **kwargs: Any) -> Any:
            seen.append(1)
            return inner(*args, **kwargs)

        monkeypatch.setattr(tf.GradientTape, "gradient", watched)
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        return tape.gradient(loss, layers)

    _, names = traced(step)
    assert len(names) == len(layers)
    with tf.GradientTape() as tape:
        square = tf.reduce_sum(layers[0] ** 2)
    assert tape.gradient(square, layers[0]).shape == [4, 4]
    assert len(seen) == 2
