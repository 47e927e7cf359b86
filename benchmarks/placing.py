"""Places a benchmark's workers: processes of this host, or hosts that are network namespaces."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks import cluster, models
from benchmarks import mpich as mpich_lib
from benchmarks.rendezvous_env import free_addresses, tf_configs
from tf_libra.internal.parent_death import signal_with_parent


class WorkersFailedError(RuntimeError):
    """Workers that did not end well; they have said why."""


class Placing:
    """Flags that several benchmarks share: what to train, and where; runs their workers.

    --np, --hosts, --rate, --mpich, --launcher, --model, --optimizer, --batch_factor, --seed,
    --unpinned, --cores, --inter_op_threads and --json.
    """

    def __init__(
        self, flag_values: flags.FlagValues, mpich: bool = False, launcher: bool = False
    ) -> None:
        """Defines the flags, --mpich and --launcher only where they make sense."""
        self._values = flag_values
        flags.DEFINE_integer(
            "np",
            2,
            "Number of workers, as many as this machine has --cores for at most.",
            flag_values=flag_values,
        )
        flags.DEFINE_integer(
            "hosts",
            None,
            "Hosts with one worker each, instead of --np workers on one.",
            lower_bound=2,
            flag_values=flag_values,
        )
        flags.DEFINE_string(
            "rate", None, "Of each host's link, such as 5gbit; see tc(8).", flag_values=flag_values
        )
        flags.DEFINE_string(
            "flow_rate",
            None,
            "That one connection may have of --rate, such as 1gbit.",
            flag_values=flag_values,
        )
        of_network = ["rate", "flow_rate"]
        self._of_hosts = [*of_network, "mpich"] if mpich else of_network
        if mpich:
            flags.DEFINE_string(
                "mpich",
                None,
                "Folder of a Horovod on MPICH, made by tools/build_horovod.py --mpich FOLDER.",
                flag_values=flag_values,
            )
            flags.register_validator("mpich", _has_mpich, flag_values=flag_values)
        flags.DEFINE_string(
            "model",
            "cnn5m",
            f"What to train: one of {', '.join(models.MODELS)}, or file.py:function, a function"
            " that returns (keras_model, inputs, labels, loss).",
            flag_values=flag_values,
        )
        flags.DEFINE_enum(
            "optimizer",
            "sgd",
            ["sgd", "momentum", "adam"],
            "Of the training step.",
            flag_values=flag_values,
        )
        if launcher:
            flags.DEFINE_enum(
                "launcher",
                "horovod",
                ["horovod", "tf_config"],
                "How workers find each other: by Horovod, or by TF_CONFIG without Horovod.",
                flag_values=flag_values,
            )
        flags.DEFINE_integer(
            "batch_factor",
            1,
            "Times as many examples per rank as the model comes with.",
            lower_bound=1,
            flag_values=flag_values,
        )
        flags.DEFINE_integer(
            "seed",
            0,
            "Of weights, data and order.",
            lower_bound=0,
            flag_values=flag_values,
        )
        flags.DEFINE_bool(
            "unpinned",
            False,
            "Leave workers to the scheduler, on all cores of their host, and TensorFlow's thread"
            " pools as large as it makes them.",
            flag_values=flag_values,
        )
        flags.DEFINE_integer(
            "cores",
            1,
            "Of each worker and its intra-op threads, where workers are pinned.",
            lower_bound=1,
            flag_values=flag_values,
        )
        flags.DEFINE_integer(
            "inter_op_threads",
            2,
            "TensorFlow's inter-op threads, where workers are pinned.",
            lower_bound=1,
            flag_values=flag_values,
        )
        flags.DEFINE_string("json", None, "File to write the outcome to.", flag_values=flag_values)
        flags.register_validator("json", _is_writable, flag_values=flag_values)
        for name in ("np", "hosts"):
            flags.register_validator(name, _has_cores, flag_values=flag_values)
        flags.register_multi_flags_validator(
            ["np", "hosts", "cores"], _have_cores, flag_values=flag_values
        )
        flags.register_validator("hosts", _can_have_hosts, flag_values=flag_values)
        flags.register_validator("model", is_model, flag_values=flag_values)
        flags.register_multi_flags_validator(
            ["hosts", *of_network],
            lambda values: (
                values["hosts"] is not None or not any(values[name] for name in of_network)
            ),
            f"{' and '.join(f'--{name}' for name in of_network)} are of a network: say how many"
            " --hosts",
            flag_values=flag_values,
        )

    @property
    def num_workers(self) -> int:
        """World size."""
        return int(self._values.hosts or self._values.np)

    @property
    def has_horovod(self) -> bool:
        """True if --launcher starts workers under Horovod."""
        return "launcher" not in self._values or self._values.launcher == "horovod"

    def network(self) -> str:
        """Between the workers, in words."""
        if self._values.hosts is None:
            return "one host"
        rate = self._values.rate
        shaped = "not shaped" if rate is None else f"shaped to {rate} each way"
        if self._values.flow_rate is not None:
            shaped += f", each connection to {self._values.flow_rate}"
        return f"one host each (network namespaces), links {shaped}"

    def measured(
        self, module: str, kind: type, by_tf_config: bool = False, **own: Any
    ) -> dict[str, Any]:
        """Runs the workers of `benchmarks.jobs.<module>`; returns what rank 0 has written.

        What they print goes to standard error.

        Args:
            module: has a function `run`, which takes the job.
            kind: of job, a `Task` whose other fields are `own`.
            by_tf_config: whether workers meet by TF_CONFIG, whatever --launcher says.
            **own: what else the job has.

        Raises:
            WorkersFailedError: they did not end well.
        """
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "measured.json"
            job = kind(
                model=self._values.model,
                seed=self._values.seed,
                pinned=not self._values.unpinned,
                inter_op_threads=self._values.inter_op_threads,
                cores=self._values.cores,
                optimizer=self._values.optimizer,
                batch_factor=self._values.batch_factor,
                output=str(output),
                **own,
            )
            status = self._launch(module, job, by_tf_config or not self.has_horovod)
            if status != 0:
                raise WorkersFailedError(f"the workers failed with status {status}")
            return json.loads(output.read_text())

    def settings(self) -> dict[str, Any]:
        """Returns the requested settings, for the outcome."""
        return {
            "np": self.num_workers,
            "network": self.network(),
            "model": self._values.model,
            "batch_factor": self._values.batch_factor,
            "seed": self._values.seed,
            "pinned": not self._values.unpinned,
        }

    def write(self, document: dict[str, Any]) -> None:
        """Writes the outcome to where --json says, if it does."""
        if self._values.json is not None:
            Path(self._values.json).write_text(json.dumps(document, indent=1) + "\n")

    def _launch(self, module: str, job: Any, by_tf_config: bool) -> int:
        """Returns the workers' exit status."""
        # TensorFlow greets from every process otherwise.
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
        launcher = [sys.executable, "-m", "tf_libra.cli", "run", "--horovod"]
        launcher += ["-np", str(self._values.np)]
        mpich = self._values["mpich"].value if "mpich" in self._of_hosts else None
        if self._values.hosts is None and mpich is not None:
            # Through shared memory, which MPICH takes within a host by itself.
            folder = Path(mpich).absolute()
            launcher = [str(folder / mpich_lib.MPIEXEC), "-n", str(self._values.np)]
            environment |= mpich_lib.environment(folder, environment)
        if self._values.hosts is not None:
            launcher = [sys.executable, "-m", "benchmarks.cluster", f"--hosts={self._values.hosts}"]
            host_flags = {name: self._values[name].value for name in self._of_hosts}
            launcher += [f"--{name}={value}" for name, value in host_flags.items() if value]
            launcher += ["--tf_config", "--"] if by_tf_config else ["--"]
        worker = [sys.executable, "-m", "benchmarks.jobs.worker", module]
        worker.append(json.dumps(dataclasses.asdict(job)))
        if by_tf_config and self._values.hosts is None:
            environments = tf_configs(free_addresses(self._values.np))
            return cluster.wait(
                [
                    subprocess.Popen(
                        worker,
                        stdout=sys.stderr,
                        env=environment | variables,
                        preexec_fn=partial(signal_with_parent, signal.SIGKILL),
                        start_new_session=True,
                    )
                    for variables in environments
                ]
            )
        return subprocess.run([*launcher, *worker], stdout=sys.stderr, env=environment).returncode


def _has_cores(count: int | None) -> bool:
    if count is None:
        return True
    cores = len(os.sched_getaffinity(0))
    if count < 2:
        raise flags.ValidationError("must be at least 2: one worker has no peer to all-reduce with")
    if count > cores:
        raise flags.ValidationError(f"must be at most {cores}: every worker needs a core")
    return True


def _have_cores(values: dict[str, int | None]) -> bool:
    workers, cores = values["hosts"] or values["np"] or 1, len(os.sched_getaffinity(0))
    if values["cores"] != 1 and workers * (values["cores"] or 1) > cores:
        raise flags.ValidationError(
            f"--cores must be at most {cores // workers} for {workers} workers on {cores} cores"
        )
    return True


def _is_writable(path: str | None) -> bool:
    if path is not None and not Path(path).parent.is_dir():
        raise flags.ValidationError(f"there is no folder {str(Path(path).parent)!r}")
    return True


def _has_mpich(folder: str | None) -> bool:
    if folder is not None and not (Path(folder) / mpich_lib.MPIEXEC).exists():
        raise flags.ValidationError(
            f"there is no {mpich_lib.MPIEXEC} in {folder!r}: make it by tools/build_horovod.py"
            f" --mpich {folder}"
        )
    return True


def _can_have_hosts(count: int | None) -> bool:
    reason = None if count is None else cluster.why_impossible()
    if reason is not None:
        raise flags.ValidationError(reason)
    return True


def is_model(model: str) -> bool:
    """Returns whether a flag names a model; raises `ValidationError` with the reason if not."""
    try:
        models.find(model)
    except ValueError as error:
        raise flags.ValidationError(str(error)) from error
    return True
