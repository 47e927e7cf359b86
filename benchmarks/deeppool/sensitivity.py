"""DeepPool's figures when a parameter that the paper does not state takes another value."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.deeppool.evaluation import Setting, scenarios
from benchmarks.deeppool.models import NETWORKS


@dataclass(frozen=True)
class Sensitivity:
    """The figures of Fig. 9 when one parameter takes another value.

    Attributes:
      parameter: which, and its value.
      network: of the figures.
      burst_over_data_parallel: the foreground's throughput, BP over DP, minus 1.
      total_over_data_parallel: of both jobs, BP + Col over DP, minus 1.
      foreground_loss: of BP + Col to BP.
    """

    parameter: str
    network: str
    burst_over_data_parallel: float
    total_over_data_parallel: float
    foreground_loss: float


def sensitivity(setting: Setting, networks: Sequence[str] = NETWORKS) -> list[Sensitivity]:
    """Each parameter that is not given, below and above what is used."""
    base, interference = setting.parameters, setting.interference

    def network_of(**changes: Any) -> Setting:
        return replace(setting, parameters=replace(base, **changes))

    def changed_interference(**changes: float) -> Setting:
        return replace(setting, interference=replace(interference, **changes))

    cases = [("as used", setting)]
    for value in (150e9, 600e9):
        changed = network_of(bytes_per_second=value)
        cases.append((f"bandwidth {value / 1e9:g} GB/s", changed))
    for value in (5e-6, 100e-6):
        cases.append((f"latency {1e6 * value:g} us", network_of(latency_seconds=value)))
    for value in (1.0, 1.3):
        cases.append((f"computation x {value:g}", changed_interference(compute_slowdown=value)))
    for value in (1.5, 3.0):
        changed = changed_interference(synchronize_slowdown=value, transition_slowdown=value)
        cases.append((f"communication x {value:g}", changed))
    for value in (0.1, 1.0):
        changed = changed_interference(background_communication=value)
        cases.append((f"background during communication x {value:g}", changed))
    for count in (1, 16):
        cases.append((f"background batch {count}", replace(setting, background_batch=count)))
    rows = []
    for name, changed in cases:
        found = {(row.network, row.scenario): row for row in scenarios(changed, networks)}
        for network in networks:
            alone, burst, both = (found[network, s] for s in ("DP", "BP", "BP + Col"))
            rows.append(
                Sensitivity(
                    name,
                    network,
                    burst.foreground / alone.foreground - 1,
                    both.total / alone.total - 1,
                    1 - both.foreground / burst.foreground,
                )
            )
    return rows
