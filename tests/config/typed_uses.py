"""Uses of `optimize`, for mypy alone: what is wrong has to be an error, else `ignore` is one."""

from pathlib import Path
from typing import Any

import tf_libra
from tf_libra.keras.fit import optimize as of_keras


def step(batch: Any) -> Any:
    return batch


def right(plan: tf_libra.Plan, model: Any) -> tf_libra.Optimized:
    tf_libra.optimize()
    tf_libra.optimize("wfbp", logdir=Path("runs"), max_tuning_steps=30)
    tf_libra.optimize(broadcast_variables=True, check_numerics="skip")
    tf_libra.optimize(tf_libra.strategies.Libra(threads=(1, 2)), plan=plan, local_variables=["a"])
    tf_libra.optimize(tuning=tf_libra.Tuning(max_seconds=40), faults=None)
    of_keras(model, "libra", progress=True).explain()
    return tf_libra.optimize(plan="plan.json")(step)


def wrong(model: Any) -> None:
    tf_libra.optimize(stratgy="libra")  # type: ignore[call-arg]
    tf_libra.optimize(max_steps=40)  # type: ignore[call-arg]
    tf_libra.optimize(strategy=4)  # type: ignore[arg-type]
    tf_libra.optimize(threads=4)  # type: ignore[call-arg]
    tf_libra.optimize(broadcast_variables=4)  # type: ignore[arg-type]
    tf_libra.optimize(max_tuning_steps=0.5)  # type: ignore[arg-type]
    tf_libra.optimize(tuning=tf_libra.Faults())  # type: ignore[arg-type]
    tf_libra.optimize("libra", 4)  # type: ignore[call-arg, arg-type]
    of_keras(model, thread=4)  # type: ignore[call-arg]
    of_keras(model, progress="no")  # type: ignore[arg-type]
