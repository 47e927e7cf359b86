"""Names of two ranks, one of which has built another model before."""

import pytest

from tf_libra.capture.automatic_names import renames, renames_to_first, with_names_of


@pytest.mark.parametrize(
    ("own", "reference", "expected"),
    [
        (["dense/kernel", "w"], ["dense/kernel", "w"], {}),
        (["dense_1/kernel"], ["dense/kernel"], {"dense_1/kernel": "dense/kernel"}),
        (
            ["s_1/dense_3/bias", "s_1/dense_2/bias"],
            ["s/dense_1/bias", "s/dense/bias"],
            {"s_1/dense_3/bias": "s/dense_1/bias", "s_1/dense_2/bias": "s/dense/bias"},
        ),
        # Numbers are compared as numbers, and those of rank 0 may be larger, or the same in part.
        (
            ["dense_9/bias", "dense_10/bias"],
            ["dense_10/bias", "dense_11/bias"],
            {"dense_9/bias": "dense_10/bias", "dense_10/bias": "dense_11/bias"},
        ),
        # Slots of optimizers have their variable's path in their name.
        (
            ["adam/s_1_dense_2_bias_momentum", "adam/iteration"],
            ["adam/s_dense_bias_momentum", "adam/iteration"],
            {"adam/s_1_dense_2_bias_momentum": "adam/s_dense_bias_momentum"},
        ),
        (["w_1#1", "w_1"], ["w#1", "w"], {"w_1#1": "w#1", "w_1": "w"}),
        # Other words, or another number of them, are no match.
        (["encoder/kernel"], ["decoder/kernel"], {}),
        (["dense_1/kernel", "dense_2/kernel"], ["dense/kernel"], {}),
        (["conv2d_1/kernel"], ["conv1d/kernel"], {}),
    ],
)
def test_names_match_that_differ_in_automatic_numbers(
    own: list[str], reference: list[str], expected: dict[str, str]
) -> None:
    assert renames(own, reference) == expected


def test_matches_are_one_to_one() -> None:
    own = [f"dense_{number}/{part}" for number in range(3, 9) for part in ("kernel", "bias")]
    reference = [f"dense_{number}/{part}" for number in range(1, 7) for part in ("kernel", "bias")]
    assert [renames(own, reference)[name] for name in own] == reference


def test_values_keep_their_order_under_the_names_of_another_rank() -> None:
    found = with_names_of(["dense/bias", "w"], {"w": 1, "dense_1/bias": 2, "other": 3})
    assert list(found.items()) == [("w", 1), ("dense/bias", 2), ("other", 3)]


def test_every_rank_is_renamed_to_rank_0() -> None:
    assert renames_to_first([["a"], ["a_1"], ["a"]]) == [{}, {"a_1": "a"}, {}]
