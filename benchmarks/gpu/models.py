"""VGG16, ResNet152, Xception and BERT-Base in plain PyTorch, untrained.

The layers are those of the papers, with 1000 classes for images and the two heads of BERT's
pre-training. `scale` divides every width, so that the same number of tensors fits a dry run.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_CLASSES = 1000
_VOCABULARY = 30522


@dataclass(frozen=True)
class Task:
    """A model with one batch to train it on: `model(*batch)` is the mean loss."""

    model: nn.Module
    batch: tuple[Tensor, ...]


@dataclass(frozen=True)
class Recipe:
    """Recipe to build and feed a model.

    Attributes:
      build: from the divisor of all widths to the model.
      batch_size: per worker, as in LIBRA's Table I.
      batch: from samples and whether it is a dry run to one batch.
    """

    build: Callable[[int], nn.Module]
    batch_size: int
    batch: Callable[[int, bool], tuple[Tensor, ...]]


def make(name: str, device: torch.device, *, rank: int, dry_run: bool, batch_factor: float) -> Task:
    """A model with the same weights on every rank, and the rank's own batch.

    Raises:
      ValueError: no model has this name.
    """
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    recipe = MODELS[name]
    torch.manual_seed(0)
    model = recipe.build(16 if dry_run else 1).to(device).train()
    torch.manual_seed(1 + rank)
    samples = 2 if dry_run else batch_size(name, batch_factor)
    return Task(model, tuple(tensor.to(device) for tensor in recipe.batch(samples, dry_run)))


def batch_size(name: str, factor: float) -> int:
    """Samples per worker."""
    return max(1, round(MODELS[name].batch_size * factor))


def tensor_bytes(name: str) -> list[tuple[str, int]]:
    """Names and bytes of a full-size model's gradients, without memory for them."""
    with torch.device("meta"):
        model = MODELS[name].build(1)
    return [(key, value.numel() * value.element_size()) for key, value in model.named_parameters()]


class _Classifier(nn.Module):
    """Cross-entropy of 1000 classes over a network's features, shape [batch, features]."""

    def __init__(self, features: nn.Module, num_features: int) -> None:
        super().__init__()
        self.features = features
        self.classifier = nn.Linear(num_features, _CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.classifier(self.features(images)), labels)


def _vgg16(scale: int) -> nn.Module:
    """Configuration D of Simonyan and Zisserman, with a bias in every layer."""
    layers: list[nn.Module] = []
    before = 3
    for width, times in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(times):
            layers += [nn.Conv2d(before, width // scale, 3, padding=1), nn.ReLU(inplace=True)]
            before = width // scale
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    hidden = 4096 // scale
    for inputs in (before * 49, hidden):
        layers += [nn.Linear(inputs, hidden), nn.ReLU(inplace=True), nn.Dropout()]
    return _Classifier(nn.Sequential(*layers), hidden)


def _convolution(before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)


class _Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.layers = nn.Sequential(
            _convolution(before, width, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            _convolution(width, width, 3, stride),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            _convolution(width, after, 1),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                _convolution(before, after, 1, stride), nn.BatchNorm2d(after)
            )

    def forward(self, value: Tensor) -> Tensor:
        return functional.relu(self.layers(value) + self.shortcut(value))


def _resnet152(scale: int) -> nn.Module:
    """Bottlenecks of 3, 8, 36 and 3 blocks; the stride is in the 3x3 convolution."""
    before = 64 // scale
    layers: list[nn.Module] = [
        _convolution(3, before, 7, 2),
        nn.BatchNorm2d(before),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    for stage, times in enumerate((3, 8, 36, 3)):
        width = 64 // scale * 2**stage
        for block in range(times):
            layers.append(_Bottleneck(before, width, 2 if stage and not block else 1))
            before = 4 * width
    return _Classifier(nn.Sequential(*layers, *_pooled()), before)


class _Separable(nn.Sequential):
    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            _convolution(before, before, 3, groups=before),
            _convolution(before, after, 1),
            nn.BatchNorm2d(after),
        )


class _XceptionBlock(nn.Module):
    """Separable convolutions, a ReLU before each, a pool where it strides, and a shortcut."""

    def __init__(self, widths: tuple[int, ...], *, stride: int, relu_first: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            # Not in place: the shortcut reads the same input.
            layers += [nn.ReLU(), _Separable(before, after)]
        layers = layers if relu_first else layers[1:]
        if stride > 1:
            layers.append(nn.MaxPool2d(3, stride, 1))
        self.layers = nn.Sequential(*layers)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(
                _convolution(widths[0], widths[-1], 1, stride), nn.BatchNorm2d(widths[-1])
            )

    def forward(self, value: Tensor) -> Tensor:
        return self.layers(value) + self.shortcut(value)


def _xception(scale: int) -> nn.Module:
    """Chollet's entry, middle (eight blocks) and exit flow."""
    c32, c64, c128, c256, c728, c1024, c1536, c2048 = (
        width // scale for width in (32, 64, 128, 256, 728, 1024, 1536, 2048)
    )
    features = nn.Sequential(
        nn.Conv2d(3, c32, 3, 2, bias=False),
        nn.BatchNorm2d(c32),
        nn.ReLU(),
        nn.Conv2d(c32, c64, 3, bias=False),
        nn.BatchNorm2d(c64),
        nn.ReLU(),
        _XceptionBlock((c64, c128, c128), stride=2, relu_first=False),
        _XceptionBlock((c128, c256, c256), stride=2),
        _XceptionBlock((c256, c728, c728), stride=2),
        *(_XceptionBlock((c728,) * 4, stride=1) for _ in range(8)),
        _XceptionBlock((c728, c728, c1024), stride=2),
        _Separable(c1024, c1536),
        nn.ReLU(),
        _Separable(c1536, c2048),
        nn.ReLU(),
        *_pooled(),
    )
    return _Classifier(features, c2048)


def _pooled() -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten()


class _Encoder(nn.Module):
    """One layer of BERT: attention, then two dense layers, each with a residual and a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.attention_norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, value: Tensor) -> Tensor:
        batch, length, width = value.shape
        query, key, content = (
            layer(value).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, content, dropout_p=0.1)
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        value = self.attention_norm(value + self.dropout(self.output(mixed)))
        dense = self.narrow(functional.gelu(self.wide(value)))
        return self.norm(value + self.dropout(dense))


class _Bert(nn.Module):
    """BERT with both heads of its pre-training; the matrix of the masked words is the embedding."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(512, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.Sequential(*(_Encoder(width, 12) for _ in range(12)))
        self.pooler = nn.Linear(width, width)
        self.next = nn.Linear(width, 2)
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width)
        self.words_bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(
        self, tokens: Tensor, segments: Tensor, masked: Tensor, words: Tensor, is_next: Tensor
    ) -> Tensor:
        positions = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        embedded = self.words(tokens) + positions + self.segments(segments)
        hidden = self.layers(self.dropout(self.norm(embedded)))
        follows = self.next(torch.tanh(self.pooler(hidden[:, 0])))
        chosen = hidden.gather(1, masked[:, :, None].expand(-1, -1, hidden.shape[2]))
        chosen = self.transform_norm(functional.gelu(self.transform(chosen)))
        scores = functional.linear(chosen, self.words.weight, self.words_bias)
        return functional.cross_entropy(scores.flatten(0, 1), words.flatten()) + (
            functional.cross_entropy(follows, is_next)
        )


def _bert_base(scale: int) -> nn.Module:
    """Twelve layers of width 768 and 12 heads over 30522 word pieces."""
    return _Bert(_VOCABULARY // scale, 768 // scale)


def _images(size: int) -> Callable[[int, bool], tuple[Tensor, ...]]:
    def batch(samples: int, dry_run: bool) -> tuple[Tensor, ...]:
        pixels = 32 if dry_run else size
        return torch.randn(samples, 3, pixels, pixels), torch.randint(_CLASSES, (samples,))

    return batch


def _sentences(samples: int, dry_run: bool) -> tuple[Tensor, ...]:
    length, predictions = (16, 4) if dry_run else (128, 20)
    vocabulary = _VOCABULARY // 16 if dry_run else _VOCABULARY
    return (
        torch.randint(vocabulary, (samples, length)),
        torch.randint(2, (samples, length)),
        torch.randint(length, (samples, predictions)),
        torch.randint(vocabulary, (samples, predictions)),
        torch.randint(2, (samples,)),
    )


MODELS = {
    "vgg16": Recipe(_vgg16, 128, _images(224)),
    "resnet152": Recipe(_resnet152, 32, _images(224)),
    "xception": Recipe(_xception, 32, _images(299)),
    "bert_base": Recipe(_bert_base, 32, _sentences),
}
