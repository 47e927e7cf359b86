"""The fusion settings from Horovod's variables, parsed as Horovod parses them."""

import pytest

from tf_libra.backends import horovod_fusion
from tf_libra.backends.horovod_fusion import Fusion


@pytest.mark.parametrize(
    ("environ", "fusion"),
    [
        ({}, Fusion(128 * 2**20, 16)),
        ({"HOROVOD_FUSION_THRESHOLD": "0"}, Fusion(0, 16)),
        ({"HOROVOD_FUSION_THRESHOLD": "1", "HOROVOD_LOCAL_SIZE": "8"}, Fusion(4096, 16)),
        ({"HOROVOD_FUSION_THRESHOLD": "1024", "HOROVOD_LOCAL_SIZE": "2"}, Fusion(1024, 16)),
        ({"HOROVOD_FUSION_THRESHOLD": " 64MB"}, Fusion(512, 16)),
        ({"HOROVOD_FUSION_THRESHOLD": ""}, Fusion(0, 16)),
        ({"HOROVOD_FUSION_THRESHOLD": "large"}, Fusion(0, 16)),
        ({"HOROVOD_FUSION_THRESHOLD": "-1024"}, Fusion(0, 16)),
        ({"HOROVOD_BATCH_D2D_MEMCOPIES": "0"}, Fusion(128 * 2**20, 1)),
    ],
)
def test_horovods_fusion_buffer(environ: dict[str, str], fusion: Fusion) -> None:
    assert horovod_fusion.from_environment(environ, on_gpu=True) == fusion


def test_without_a_gpu_nothing_is_padded() -> None:
    assert horovod_fusion.from_environment({}, on_gpu=False) == Fusion(128 * 2**20, 1)
