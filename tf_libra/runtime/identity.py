"""Identities of training functions that have the same name, equal on every rank.

A script decorates in the same order on every rank, so that counting tells apart two that share name
and variables.
"""

from collections import Counter

from tf_libra.capture.automatic_names import without_numbers

# How many functions of a name this process has decorated.
_DECORATED: Counter[str] = Counter()


# What `keras/fit.py` calls the training step of a model.
_OF_MODEL = " of model "


def of_another(name: str) -> str:
    """The identity of one more function of this name.

    A number that Keras may have given to the model is no part of it: ranks that have built other
    models before have other numbers.
    """
    step, of_model, model = name.partition(_OF_MODEL)
    name = step + of_model + (without_numbers(model) if of_model else "")
    count = _DECORATED[name]
    _DECORATED[name] += 1
    return f"{name}#{count}" if count else name


def count_anew() -> None:
    """Counts from the start, as workers do that have just joined the job."""
    _DECORATED.clear()
