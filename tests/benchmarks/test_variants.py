"""Strategies with arguments, in the notation of the benchmarks' flags."""

import pytest

from benchmarks import variants
from tf_libra import strategies


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("libra", strategies.Libra()),
        ("aiacc:streams=1:threads=1", strategies.Aiacc(streams=(1,), threads=(1,))),
        ("aiacc:unit_bytes=65536:streams=4/2", strategies.Aiacc(unit_bytes=2**16, streams=(2, 4))),
        ("wfbp:num_threads=3", strategies.Wfbp(num_threads=3)),
        ("spp:num_microbatches=4", strategies.Spp(num_microbatches=4)),
        ("wfbp:wire_dtype=float16:num_threads=3", strategies.Wfbp(num_threads=3)),
        ("libra:zero_blocks=send", strategies.Libra()),
        ("deeppool", strategies.DeepPool()),
    ],
)
def test_names_and_arguments(text: str, strategy: strategies.Strategy) -> None:
    assert variants.is_ours(text)
    assert variants.strategy_of(text) == strategy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("aiacc:stream=1", "aiacc has the arguments .*streams.* got 'stream'"),
        ("aiacc:streams=few", "streams must be whole numbers, got 'few'"),
        ("aiacc:streams", "streams must be whole numbers, got ''"),
        ("wfbp:num_threads=1/2", "num_threads must be one number, got '1/2'"),
        ("aiacc:streams=0", "streams must be"),
        ("libra:wire_dtype=float8", "wire_dtype must be one of"),
        ("deeppool:wire_dtype=float16", "deeppool has the arguments"),
        ("libra:wire_dtype=float16:error_feedback=yes", "error_feedback must be 0 or 1"),
        ("libra:shard_updates=2", "shard_updates must be 0 or 1 or overlap or auto"),
        ("libra:zero_blocks=maybe", "zero_blocks must be omit or send"),
    ],
)
def test_invalid_variant_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        variants.strategy_of(text)


def test_baselines_are_none_of_ours() -> None:
    assert not any(variants.is_ours(name) for name in ("none", "horovod", "mwms", "nothing"))


def test_pipelines_and_bursts_have_stages() -> None:
    names = ("spp:num_microbatches=4", "deeppool", "libra", "one-worker")
    assert [variants.has_stages(name) for name in names] == [True, True, False, False]


def test_zeros_are_sent_on_request() -> None:
    texts = ("libra", "libra:zero_blocks=omit", "wfbp:num_threads=2:zero_blocks=send")
    assert [variants.sends_zeros(text) for text in texts] == [False, False, True]
    assert variants.options_of("libra:zero_blocks=send") == {}


def test_a_wire_dtype_is_an_option_of_optimize() -> None:
    assert variants.options_of("libra:wire_dtype=bfloat16") == {"wire_dtype": "bfloat16"}
    assert variants.options_of("aiacc:streams=1") == {}
    both = variants.options_of("libra:wire_dtype=bfloat16:error_feedback=1")
    assert both == {"wire_dtype": "bfloat16", "error_feedback": True}
    assert variants.options_of("libra:shard_updates=1") == {"shard_updates": True}
    assert variants.options_of("libra:shard_updates=overlap") == {"shard_updates": "overlap"}


def test_sharded_updates_pipelines_and_bursts_train_models_of_their_own() -> None:
    names = ("libra:shard_updates=1", "spp:num_microbatches=4", "libra:shard_updates=0", "none")
    assert [variants.trains_own_model(name) for name in names] == [True, True, False, False]
    assert variants.trains_own_model("dear:buffer_bytes=1000000")
