"""Statements of DeepPool's evaluation, compared with our results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.deeppool.evaluation import Row, Scaled, gain_over_partitions


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, compared with our result.

    Attributes:
      text: what is said.
      where: in the paper.
      paper: the paper's words or figure.
      ours: the same, computed here.
    """

    text: str
    where: str
    paper: str
    ours: str


def claims(
    figure_9: Sequence[Row], figure_10: Mapping[str, Sequence[Row]], scaled: Sequence[Scaled]
) -> list[Claim]:
    """The figures in the text of the paper's evaluation."""
    rows = {(row.network, row.scenario): row for row in figure_9}

    def change(network: str, scenario: str, other: str, *, total: bool = False) -> float:
        first, second = rows[network, scenario], rows[network, other]
        if total:
            return first.total / second.total - 1
        return first.foreground / second.foreground - 1

    totals = [row.total_over_data_parallel for row in scaled if row.total_over_data_parallel]
    low, high = min(totals), max(totals)
    return [
        Claim(
            "VGG-16, foreground: BP over DP",
            "7.1",
            "higher",
            f"{change('vgg16', 'BP', 'DP'):+.0%}",
        ),
        Claim(
            "VGG-16, total: BP + Col over BP",
            "7.1",
            "almost double",
            f"{change('vgg16', 'BP + Col', 'BP', total=True):+.0%}",
        ),
        Claim(
            "VGG-16, foreground: BP + Col over BP",
            "7.1",
            "above -18 %",
            f"{change('vgg16', 'BP + Col', 'BP'):+.0%}",
        ),
        Claim(
            "VGG-16, foreground: BP + Col over DP",
            "7.1",
            "still higher",
            f"{change('vgg16', 'BP + Col', 'DP'):+.0%}",
        ),
        Claim(
            "Inception-v3, foreground: BP over DP",
            "7.1",
            "falls back to DP",
            f"{change('inception_v3', 'BP', 'DP'):+.0%}",
        ),
        Claim(
            "Inception-v3, total: BP + Col over BP",
            "7.1",
            "+15 %",
            f"{change('inception_v3', 'BP + Col', 'BP', total=True):+.0%}",
        ),
        Claim(
            "VGG-16, foreground over a partition's of no more throughput, at most",
            "7.1, Fig. 10",
            "+38 %",
            f"{gain_over_partitions(figure_10['vgg16']):+.0%}",
        ),
        Claim(
            "Inception-v3, the same",
            "7.1, Fig. 10",
            "+37 %",
            f"{gain_over_partitions(figure_10['inception_v3']):+.0%}",
        ),
        Claim(
            "total cluster throughput over DP with one task, at large scale",
            "abstract",
            "1.2 to 2.3 times",
            f"{low:.2f} to {high:.2f} times (8 to 1,024 GPUs, all limits)",
        ),
    ]
