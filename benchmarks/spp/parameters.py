"""Inputs of SPP's studies: models as chains of layers, and clusters.

Arithmetic gives a layer's time: operations per sample over the rate that a GPU sustains, the
backward computation twice the forward. Sources names what the paper says and what it does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import tf_libra
from benchmarks.paper.parameters import sustained_share

_GIGABIT = 1e9 / 8
# NVIDIA's data sheets: peak single-precision operations per second.
V100_PEAK = 14.0e12  # Tesla V100 PCIe
GTX1080TI_PEAK = 11.34e12  # GeForce GTX 1080 Ti

BLOCKS = 24  # of BERT-large
SAMPLES = 6  # of a microbatch
MICROBATCHES = 32
SERVERS = (4,) * 8  # GPUs of each
TOKENS = 384
INTER_SERVER = (32.0, 40.0)  # Gbit/s

SOURCES = (
    "BERT-large in 27 layers with 24 transformer blocks, 32 microbatches of 6 samples, 8 servers "
    "of 4 V100 GPUs; links of 96 to 128 Gbit/s within three servers, 160 to 200 within five, 32 to "
    "40 between servers: section V-B",
    "microbatches, their sizes and parameters of the seven models: Table II",
    "the testbeds: 4 servers of two GTX 1080 Ti, 50 Gbit/s between them; one server of four V100, "
    "128 Gbit/s: section V-A",
)
MISSING_IN_PAPER = (
    "layer times: operations over the rate that a GPU sustains, backward twice forward. The rate "
    "is a share of a data sheet's peak (14 T for a V100, 11.34 T for a GTX 1080 Ti), which follows "
    "from the 0.182 s that ResNet-152's backward takes in ASC-WFBP's paper (section VI-E)",
    f"tokens per sample: {TOKENS}, as BERT's recipe for SQuAD has it; 4 bytes per number",
    "the 27 layers: an embedding, the blocks, pooler and head",
    "links: drawn uniformly from a fixed seed, between servers one rate per pair of servers",
    "links within the servers of GTX 1080 Ti: 128 Gbit/s, as the paper gives for PCIe",
    "which servers have PCIe where their number changes: the first three eighths",
    "levels of bandwidth of Fig. 7, topologies of Fig. 8 but one, factors of Fig. 10: chosen",
    "Transformer's vocabulary and XLNet's blocks: as large as Table II's parameters ask for",
    "HetPipe: nodes take turns at microbatches where their number allows, else share each",
)


@dataclass(frozen=True)
class _Layer:
    """Forward operations, parameters and numbers put out, of one sample."""

    name: str
    operations: float
    parameters: float
    outputs: float


def gpu_rate(peak: float) -> float:
    """Operations per second that a GPU sustains."""
    return sustained_share() * peak


def _graph(layers: Sequence[_Layer], samples: int, rate: float) -> tf_libra.LayerGraph:
    forward = np.array([layer.operations for layer in layers]) * samples / rate
    return tf_libra.LayerGraph.chain(
        forward,
        2 * forward,
        [4 * layer.parameters for layer in layers],
        [4 * samples * layer.outputs for layer in layers[:-1]],
        [layer.name for layer in layers],
    )


def _transformer(width: int, tokens: int, attentions: int = 1) -> tuple[float, float]:
    """Operations and parameters of a block: attentions of 4 h^2, an inner layer of 8 h^2."""
    parameters = (4 * attentions + 8) * width**2
    return 2 * parameters * tokens + 4 * attentions * tokens**2 * width, parameters


def bert(
    blocks: int = BLOCKS,
    *,
    tokens: int = TOKENS,
    samples: int = SAMPLES,
    rate: float | None = None,
    block_parameters: float = 0,
) -> tf_libra.LayerGraph:
    """BERT, 1024 wide; BERT-large with 24 blocks."""
    width = 1024
    operations, parameters = _transformer(width, tokens)
    outputs = tokens * width
    layers = [
        _Layer("embedding", 10 * outputs, (30522 + 512 + 2) * width, outputs),
        *(
            _Layer(f"block_{i}", operations, block_parameters or parameters, outputs)
            for i in range(blocks)
        ),
        _Layer("pooler", 2 * width**2, width**2, outputs),
        _Layer("head", 4 * width * tokens, 2 * width, 0),
    ]
    return _graph(layers, samples, rate or gpu_rate(V100_PEAK))


def transformer(samples: int, rate: float, tokens: int = TOKENS) -> tf_libra.LayerGraph:
    """Transformer, 512 wide: six blocks of an encoder, six of a decoder; 55 M parameters."""
    width = 512
    encoder, decoder = _transformer(width, tokens), _transformer(width, tokens, 2)
    embedding = 55e6 - 6 * (encoder[1] + decoder[1])
    outputs = tokens * width
    layers = [_Layer("embedding", 10 * outputs, embedding, outputs)]
    layers += [_Layer(f"encoder_{i}", *encoder, outputs) for i in range(6)]
    # The encoder's outputs are passed on in addition to the decoder's own.
    layers += [_Layer(f"decoder_{i}", *decoder, 2 * outputs) for i in range(6)]
    layers.append(_Layer("head", 2 * embedding * tokens, 0, 0))
    return _graph(layers, samples, rate)


def _convolution(size: int, inputs: int, outputs: int, *kernel: int) -> tuple[float, float]:
    parameters = inputs * outputs * kernel[0] * kernel[-1]
    return 2 * parameters * size**2, parameters


def _added(name: str, parts: Sequence[tuple[float, float]], outputs: float) -> _Layer:
    return _Layer(name, sum(p[0] for p in parts), sum(p[1] for p in parts), outputs)


def vgg19(samples: int, rate: float) -> tf_libra.LayerGraph:
    """VGG-19 at 224 by 224."""
    layers: list[_Layer] = []
    inputs, size = 3, 224
    for width, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for i in range(count):
            last = i == count - 1  # with the pooling behind it
            outputs = width * (size // 2 if last else size) ** 2
            part = _convolution(size, inputs, width, 3)
            layers.append(_added(f"conv_{len(layers)}", [part], outputs))
            inputs = width
        size //= 2
    for inputs, outputs in ((25088, 4096), (4096, 4096), (4096, 1000)):
        layers.append(_Layer(f"fc_{len(layers)}", 2 * inputs * outputs, inputs * outputs, outputs))
    return _graph(layers, samples, rate)


def resnet152(samples: int, rate: float) -> tf_libra.LayerGraph:
    """ResNet-152 at 224 by 224, a block as one layer; shortcuts within blocks only."""
    layers = [_added("stem", [_convolution(112, 3, 64, 7)], 64 * 56**2)]
    inputs, size = 64, 56
    for width, count in ((64, 3), (128, 8), (256, 36), (512, 3)):
        for i in range(count):
            parts = [
                _convolution(size, inputs, width, 1),
                _convolution(size, width, width, 3),
                _convolution(size, width, 4 * width, 1),
            ]
            if i == 0:
                parts.append(_convolution(size, inputs, 4 * width, 1))
            inputs = 4 * width
            layers.append(_added(f"block_{len(layers)}", parts, inputs * size**2))
        size //= 2
    layers.append(_Layer("fc", 2 * 2048 * 1000, 2048 * 1000, 1000))
    return _graph(layers, samples, rate)


def inception_v3(samples: int, rate: float) -> tf_libra.LayerGraph:
    """Inception-v3 at 299 by 299, parallel branches as one layer."""

    def path(size: int, *widths: int, kernels: Sequence[tuple[int, ...]]) -> list:
        return [
            _convolution(size, a, b, *kernel)
            for a, b, kernel in zip(widths, widths[1:], kernels, strict=False)
        ]

    single, three, five, row, column = (1,), (3,), (5,), (1, 7), (7, 1)
    layers = [
        _added("conv_0", [_convolution(149, 3, 32, 3)], 32 * 149**2),
        _added("conv_1", [_convolution(147, 32, 32, 3)], 32 * 147**2),
        _added("conv_2", [_convolution(147, 32, 64, 3)], 64 * 73**2),
        _added("conv_3", [_convolution(73, 64, 80, 1)], 80 * 73**2),
        _added("conv_4", [_convolution(71, 80, 192, 3)], 192 * 35**2),
    ]
    inputs = 192
    for pooled in (32, 64, 64):
        parts = path(35, inputs, 64, kernels=[single])
        parts += path(35, inputs, 48, 64, kernels=[single, five])
        parts += path(35, inputs, 64, 96, 96, kernels=[single, three, three])
        parts += path(35, inputs, pooled, kernels=[single])
        inputs = 224 + pooled
        layers.append(_added(f"mixed_{len(layers)}", parts, inputs * 35**2))
    parts = path(17, 288, 384, kernels=[three]) + path(17, 96, 96, kernels=[three])
    parts += path(35, 288, 64, 96, kernels=[single, three])
    layers.append(_added(f"mixed_{len(layers)}", parts, 768 * 17**2))
    for c in (128, 160, 160, 192):
        parts = path(17, 768, 192, kernels=[single]) + path(17, 768, 192, kernels=[single])
        parts += path(17, 768, c, c, 192, kernels=[single, row, column])
        parts += path(17, 768, c, c, c, c, 192, kernels=[single, column, row, column, row])
        layers.append(_added(f"mixed_{len(layers)}", parts, 768 * 17**2))
    parts = path(17, 768, 192, kernels=[single]) + path(8, 192, 320, kernels=[three])
    parts += path(17, 768, 192, 192, 192, kernels=[single, row, column])
    parts += path(8, 192, 192, kernels=[three])
    layers.append(_added(f"mixed_{len(layers)}", parts, 1280 * 8**2))
    for inputs in (1280, 2048):
        parts = path(8, inputs, 320, kernels=[single]) + path(8, inputs, 192, kernels=[single])
        parts += path(8, inputs, 384, kernels=[single]) + path(
            8, inputs, 448, 384, kernels=[single, three]
        )
        parts += 4 * path(8, 384, 384, kernels=[(1, 3)])
        layers.append(_added(f"mixed_{len(layers)}", parts, 2048 * 8**2))
    layers.append(_Layer("fc", 2 * 2048 * 1000, 2048 * 1000, 1000))
    return _graph(layers, samples, rate)


def model(name: str, samples: int, rate: float) -> tf_libra.LayerGraph:
    """One of Table II's models, of so many samples in a microbatch."""
    match name:
        case "VGG19":
            return vgg19(samples, rate)
        case "ResNet152":
            return resnet152(samples, rate)
        case "Inception-V3":
            return inception_v3(samples, rate)
        case "Transformer":
            return transformer(samples, rate)
        case "BERT-large":
            return bert(samples=samples, rate=rate)
        case "XLNet-large":
            # The blocks as large as Table II's sum requires, with 32.8 M in the other layers.
            return bert(samples=samples, rate=rate, block_parameters=(550e6 - 32.8e6) / 24)
        case "BERT-48":
            return bert(48, samples=samples, rate=rate)
    raise ValueError(f"model must be one of Table II's, got {name!r}")


def servers(
    sizes: Sequence[int] = SERVERS,
    *,
    between: tuple[float, float] = INTER_SERVER,
    num_slow: int | None = None,
    seed: int = 0,
) -> tf_libra.Cluster:
    """Servers of so many GPUs, so many of them with PCIe (None: three eighths); rates in Gbit/s."""
    random = np.random.default_rng(seed)
    server = np.repeat(np.arange(len(sizes)), sizes)
    pairs = random.uniform(*between, (len(sizes), len(sizes)))
    rates = pairs[server[:, None], server]
    slow = round(len(sizes) * 3 / 8) if num_slow is None else num_slow
    for index in range(len(sizes)):
        own = server == index
        low, high = (96, 128) if index < slow else (160, 200)
        rates[np.ix_(own, own)] = random.uniform(low, high, (sizes[index], sizes[index]))
    rates = np.triu(rates, 1)
    return tf_libra.Cluster.from_bandwidth(_GIGABIT * (rates + rates.T), server.tolist())


def testbed(name: str, *, within: float = 128.0) -> tf_libra.Cluster:
    """The testbeds of section V-A; Gbit/s between GPUs of one server."""
    sizes, between = {"1080Ti x 8": ((2,) * 4, 50.0), "V100 x 4": ((4,), 0.0)}[name]
    server = np.repeat(np.arange(len(sizes)), sizes)
    rates = np.where(server[:, None] == server, within, between) * _GIGABIT
    return tf_libra.Cluster.from_bandwidth(rates, server.tolist())
