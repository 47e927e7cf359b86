"""DeepPool's evaluation, computed with the burst planner and the multiplexing simulator."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import tf_libra
from benchmarks.deeppool import models
from benchmarks.deeppool.models import NETWORKS, Parameters
from tf_libra.model_parallel.planning.burst import (
    data_parallel,
    static_partitions,
    strong_scaling_limit,
)
from tf_libra.model_parallel.simulation import (
    BackgroundJob,
    Interference,
    Multiplexed,
    Multiplexing,
    simulate_multiplexing,
)

GPUS = (1, 2, 4, 8)  # Table 2
BATCH = 32  # Fig. 9 (a) and (c)
SCALES = tuple(2**power for power in range(3, 11))  # 8 to 1024
SCALE_BATCH = 1024
LIMITS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)
# Not given: the background's batch; forward's share of a layer's time (backward computes twice).
BACKGROUND_BATCH = 4
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Setting:
    """Inputs of an evaluation, in addition to the published times."""

    parameters: Parameters = field(default_factory=Parameters)
    interference: Interference = field(default_factory=Interference)
    background_batch: int = BACKGROUND_BATCH


@dataclass(frozen=True)
class Row:
    """One scenario of Figs. 9 to 11; samples per second of the whole cluster.

    Attributes:
      network: its name.
      scenario: as in the paper.
      limit: on amplification, where there is one.
      iteration_seconds: of the foreground; None: there is none.
      foreground: samples per second.
      background: samples per second.
    """

    network: str
    scenario: str
    limit: float | None
    iteration_seconds: float | None
    foreground: float
    background: float

    @property
    def total(self) -> float:
        """Both."""
        return self.foreground + self.background


def background(network: str, setting: Setting) -> BackgroundJob:
    """The same network with a batch of its own: a forward and a backward operator per layer."""
    found = models.layers(network, setting.parameters)
    batch = setting.background_batch
    forward = [FORWARD_SHARE * layer.seconds_at(batch) for layer in found]
    backward = [(1 - FORWARD_SHARE) * layer.seconds_at(batch) for layer in reversed(found)]
    return BackgroundJob(tuple(s for s in (*forward, *backward) if s > 0), batch)


def collocated(
    network: str,
    plan: tf_libra.BurstPlan,
    batch: int,
    setting: Setting,
    how: Multiplexing | None = None,
) -> Multiplexed:
    """Simulates a plan concurrent with the background on every GPU."""
    return simulate_multiplexing(
        plan,
        background(network, setting),
        how,
        setting.interference,
        utilization=models.utilization(network, plan, batch),
    )


def limit_for(scaling: tf_libra.ScalingProfile) -> float | None:
    """The least limit of `LIMITS` under which bursts are no slower than data parallelism on all.

    The paper sets it "to minimize the impact on the foreground performance" and gives no number.
    """
    whole = data_parallel(scaling)[-1].iteration_seconds
    for limit in LIMITS:
        plan = tf_libra.make_burst_plan(scaling, max_amplification=limit)
        if plan.iteration_seconds <= whole:
            return limit
    return None


def scenarios(setting: Setting, networks: Sequence[str] = NETWORKS) -> list[Row]:
    """Fig. 9: data parallelism, bursts, bursts and background, background alone, on 8 GPUs."""
    rows = []
    for network in networks:
        scaling = models.profile(network, GPUS, BATCH, setting.parameters)
        whole = data_parallel(scaling)[-1]
        limit = limit_for(scaling)
        burst = tf_libra.make_burst_plan(scaling, max_amplification=limit)
        both = collocated(network, burst, BATCH, setting)
        job = background(network, setting)
        alone = GPUS[-1] * job.batch / job.iteration_seconds
        rows += [
            _row(network, "DP", None, whole.iteration_seconds, 0.0),
            _row(network, "BP", limit, burst.iteration_seconds, 0.0),
            _row(
                network,
                "BP + Col",
                limit,
                both.iteration_seconds,
                both.background_iterations * job.batch,
            ),
            Row(network, "BG only", None, None, 0.0, alone),
        ]
    return rows


def _row(network: str, scenario: str, limit: float | None, seconds: float, back: float) -> Row:
    return Row(network, scenario, limit, seconds, BATCH / seconds, back)


def operating_points(setting: Setting, network: str) -> list[Row]:
    """Fig. 10: static partitions, and bursts with a background under limits and feedbacks."""
    scaling = models.profile(network, GPUS, BATCH, setting.parameters)
    job = background(network, setting)
    rows = [
        _row(
            network,
            f"partition {part.foreground_devices} + {part.background_devices}",
            None,
            part.foreground.iteration_seconds,
            part.background_iterations(job.iteration_seconds) * job.batch,
        )
        for part in static_partitions(scaling)
    ]
    plans: dict[str, tuple[float, tf_libra.BurstPlan]] = {}
    for limit in LIMITS:
        plan = tf_libra.make_burst_plan(scaling, max_amplification=limit)
        plans.setdefault(plan.fingerprint, (limit, plan))
    for limit, plan in plans.values():
        for slowdown in (1.1, 1.5, 2.5, None):
            both = collocated(network, plan, BATCH, setting, Multiplexing(max_slowdown=slowdown))
            name = f"BP + Col, feedback {'off' if slowdown is None else f'at {slowdown:g}'}"
            back = both.background_iterations * job.batch
            rows.append(_row(network, name, limit, both.iteration_seconds, back))
    return rows


def gain_over_partitions(rows: Sequence[Row]) -> float:
    """Returns the foreground's largest gain in speed over a partition of no more throughput."""
    points = [row for row in rows if row.scenario.startswith("BP")]
    gains = []
    for part in rows:
        if part.scenario.startswith("partition"):
            quicker = [p.foreground / part.foreground for p in points if p.total >= part.total]
            gains.append(max(quicker, default=0.0) - 1)
    return max(gains)


def mechanisms(setting: Setting, network: str = "vgg16") -> list[Row]:
    """Fig. 11: one mechanism after the other. Its first step, CUDA graphs, is in no layer time."""
    scaling = models.profile(network, GPUS, BATCH, setting.parameters)
    limit = limit_for(scaling)
    plan = tf_libra.make_burst_plan(scaling, max_amplification=limit)
    large = replace(setting, background_batch=4 * setting.background_batch)
    naive = Multiplexing(
        max_outstanding=None, operators_per_graph=None, priorities=False, max_slowdown=None
    )
    prior = replace(naive, priorities=True)
    paced = replace(prior, max_outstanding=2)
    split = replace(paced, operators_per_graph=1)
    steps = [
        ("naive collocation", naive, large),
        ("+ stream priorities", prior, large),
        ("+ launch pacing", paced, large),
        ("+ split graphs", split, large),
        ("+ slowdown feedback", replace(split, max_slowdown=1.5), large),
        ("+ smaller background batch", replace(split, max_slowdown=1.5), setting),
    ]
    rows = [_row(network, "foreground alone", limit, plan.iteration_seconds, 0.0)]
    for name, how, used in steps:
        both = collocated(network, plan, BATCH, used, how)
        back = both.background_iterations * used.background_batch
        rows.append(_row(network, name, limit, both.iteration_seconds, back))
    return rows


@dataclass(frozen=True)
class Scaled:
    """One strategy on one cluster, for a batch of `SCALE_BATCH`.

    Attributes:
      network: its name.
      strategy: "DP" or "BP" with its limit.
      gpus: of the cluster.
      iteration_seconds: of the foreground.
      speedup: over one GPU.
      device_seconds: over one GPU's iteration: the amplification of the whole.
      idle_share: of the cluster's GPU seconds.
      total_over_data_parallel: samples per second with a background job, over those of data
        parallelism on all GPUs without; None for data parallelism.
      slowdown: of the foreground by the background.
    """

    network: str
    strategy: str
    gpus: int
    iteration_seconds: float
    speedup: float
    device_seconds: float
    idle_share: float
    total_over_data_parallel: float | None = None
    slowdown: float | None = None


def scaled_out(
    setting: Setting,
    networks: Sequence[str] = NETWORKS,
    scales: Sequence[int] = SCALES,
    limits: Sequence[float | None] = (2.0, 4.0, None),
) -> list[Scaled]:
    """Clusters of 8 to 1,024 GPUs."""
    rows = []
    for network in networks:
        job = background(network, setting)
        for gpus in scales:
            counts = tuple(2**power for power in range(gpus.bit_length()))
            scaling = models.profile(network, counts, SCALE_BATCH, setting.parameters)
            whole = data_parallel(scaling)
            alone = whole[0].iteration_seconds
            rows.append(_scaled(network, "DP", whole[-1], alone))
            for limit in limits:
                plan = tf_libra.make_burst_plan(scaling, max_amplification=limit)
                both = collocated(network, plan, SCALE_BATCH, setting)
                total = SCALE_BATCH / both.iteration_seconds
                total += both.background_iterations * job.batch
                rows.append(
                    replace(
                        _scaled(
                            network,
                            "BP, no limit" if limit is None else f"BP, {limit:g}",
                            plan,
                            alone,
                        ),
                        total_over_data_parallel=total
                        / (SCALE_BATCH / whole[-1].iteration_seconds),
                        slowdown=both.foreground_slowdown,
                    )
                )
            least = strong_scaling_limit(scaling)
            rows.append(Scaled(network, "limit", gpus, least, alone / least, 0.0, 0.0))
    return rows


def _scaled(network: str, strategy: str, plan: tf_libra.BurstPlan, alone: float) -> Scaled:
    gpus = plan.device_counts[-1]
    return Scaled(
        network,
        strategy,
        gpus,
        plan.iteration_seconds,
        alone / plan.iteration_seconds,
        plan.device_seconds / alone,
        sum(plan.idle_seconds) / gpus / plan.iteration_seconds,
    )


@dataclass(frozen=True)
class Workload:
    """Table 1: the paper's figures and those of the profile, and Fig. 5's spread of speedups.

    Attributes:
      network: its name.
      layers, paper_layers: how many.
      parameters, paper_parameters: in millions.
      speedups: least, median and largest of the layers, from 128 samples on one GPU to 2 on each of
        64.
    """

    network: str
    layers: int
    paper_layers: int
    parameters: float
    paper_parameters: float
    speedups: tuple[float, float, float]


def workloads(setting: Setting) -> list[Workload]:
    """Table 1 and Fig. 5."""
    paper = {"vgg16": (21, 132.0), "inception_v3": (119, 24.0)}
    rows = []
    for network in NETWORKS:
        found = models.layers(network, setting.parameters)
        speedups = sorted(
            layer.seconds_at(128) / layer.seconds_at(2) for layer in found if layer.seconds_at(2)
        )
        rows.append(
            Workload(
                network,
                len(found),
                paper[network][0],
                sum(layer.parameters for layer in found) / 1e6,
                paper[network][1],
                (speedups[0], statistics.median(speedups), speedups[-1]),
            )
        )
    return rows
