"""Parameters from what `benchmarks.gpu` measured."""

from pathlib import Path

import tf_libra
from benchmarks import networks
from benchmarks.gpu import documents
from benchmarks.paper.parameters import Parameters, Workload

_WORKERS = 8  # LIBRA's testbed
_THREADS = (128, 256, 512, 1024, 2048, 4096)


def of_gpu(folder: Path, library_threads: int = 1024) -> Parameters:
    """The networks that were profiled, each with the cost model of its own training, else of all.

    The cost models were fitted to the workers that shared the GPU; they are carried over to 8.

    Args:
      folder: what was given to `benchmarks.gpu --out`.
      library_threads: communication threads that NCCL uses by itself.

    Raises:
      ValueError: the folder holds no profile or no cost model, or a file is malformed.
    """
    found = documents.load(folder)
    if not found.profiles:
        raise ValueError(f"{folder} holds no profile: run its step `profiles`")
    runs = documents.read(folder / "profiles.json")["results"]["models"]
    workloads = []
    for name, profile in found.profiles.items():
        cost = found.model_costs.get(name, found.cost)
        if cost is None:
            raise ValueError(f"{folder} holds no cost model for {name}: run its step `curves`")
        run = runs[name]
        workloads.append(
            Workload(
                networks.load(name).title if name in networks.NAMES else name,
                run["batch_size"],
                run["forward_seconds"],
                profile,
                cost.with_workers(_WORKERS),
            )
        )
    threads = tuple(r for r in _THREADS if all(_has_rates(w.cost, r) for w in workloads))
    environment = ", ".join(f"{key} {found.environment[key]}" for key in documents.MEASURED_ON)
    own = ", ".join(name for name in found.profiles if name in found.model_costs) or "none"
    return Parameters(
        name=str(found.environment["device"]),
        sources=(
            f"measured by `python -m benchmarks.gpu`: {environment}",
            f"cost models fitted to the training itself: {own}; else to the curves of all kernels",
            f"{_WORKERS} workers, by Eq. 4 from those that shared the GPU: no network is in it",
            f"R: of {', '.join(map(str, _THREADS))} those with positive rates under all models",
            f"the library's threads: {library_threads}, given",
            "Horovod 0.28: cycles of 1 ms, a buffer of 128 MiB",
        ),
        library_threads=library_threads,
        threads=threads,
        cycle_seconds=1e-3,
        buffer_bytes=128 * 2**20,
        workloads=tuple(workloads),
    )


def _has_rates(cost: tf_libra.ContentionModel, threads: int) -> bool:
    try:
        cost.compute_rate(threads)
        cost.overlapped_rate(threads)
        cost.exclusive_rate(threads)
    except ValueError:
        return False
    return True
