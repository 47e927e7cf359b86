#!/usr/bin/env python3
"""Trains two workers under Ray Train and torchrun, which start them again when one is killed.

    make launchers

`examples/restartable_digits.py` runs under each launcher in a folder of its own. A launcher passes
if it has started the workers twice, and the second start continued from a checkpoint to the end.
This script and the launchers run in an environment without TensorFlow. torchrun's workers run
`--python`; Ray's run this interpreter, with the packages of `--python`, whose version is the same.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "restartable_digits.py"
ARGUMENTS = ("--steps=10", "--checkpoint_every=4", "--kill_at_step=6")
STARTS = ("start at step 0 of 10 on 2 worker(s)", "start at step 4 of 10 on 2 worker(s)")
END = "step 10: loss"
DEADLINE_SECONDS = 780.0


def under_torchrun(folder: Path, python: Path) -> list[str]:
    """Returns the command of torchrun, which starts both workers again if one fails."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "--no-python"]
    return [*torchrun, *options, str(python), str(EXAMPLE), f"--folder={folder}", *ARGUMENTS]


def under_ray(folder: Path, python: Path) -> list[str]:
    """Returns the command of this script that trains in a Ray cluster of this machine."""
    return [sys.executable, __file__, "--python", str(python), "--ray-folder", str(folder)]


LAUNCHERS: dict[str, Callable[[Path, Path], list[str]]] = {
    "torchrun": under_torchrun,
    "ray": under_ray,
}


def train_under_ray(folder: Path) -> None:
    """Runs the example in the workers of a `TensorflowTrainer`, outside of their main threads."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    def worker() -> None:
        import runpy
        import sys

        sys.argv = [str(EXAMPLE), f"--folder={folder}", *ARGUMENTS]
        try:
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        except SystemExit as end:  # absl's app ends the process
            if end.code:
                raise RuntimeError(f"the example ended with {end.code}") from end

    ray.init(num_cpus=2, include_dashboard=False)
    TensorflowTrainer(
        worker,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()


def packages_of(python: Path) -> str:
    """Returns the folder of another interpreter's packages, for workers that Ray starts."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.check_output([python, "-c", code], text=True).strip()


def passes(name: str, python: Path) -> bool:
    """Runs the example under a launcher; prints its output, and returns whether it restarted."""
    folder = Path(tempfile.mkdtemp(prefix=f"libra-{name}-"))
    paths = [str(ROOT / "tests" / "startup"), str(ROOT)]  # TensorFlow is imported in less time
    if name == "ray":
        paths.append(packages_of(python))
    variables = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process for what clouds announce
    }
    launcher = subprocess.Popen(
        LAUNCHERS[name](folder, python),
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = launcher.communicate(timeout=DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)  # its workers, too
        print(launcher.communicate()[0])
        print(f"{name}: still running after {DEADLINE_SECONDS:g} s", flush=True)
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    missing = [text for text in (*STARTS, END) if text not in output]
    passed = launcher.returncode == 0 and not missing
    if not passed:
        print(output)
    status = launcher.returncode
    verdict = "passed" if passed else f"failed: exit status {status}, missing {missing}"
    print(f"{name}: {verdict}", flush=True)
    return passed


def main() -> int:
    """Returns 0 if every launcher passes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("launchers", nargs="*", default=list(LAUNCHERS), help="torchrun, ray")
    parser.add_argument(
        "--python", type=Path, default=ROOT / ".venv/bin/python", help="interpreter with TensorFlow"
    )
    parser.add_argument("--ray-folder", type=Path, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.ray_folder is not None:
        train_under_ray(parsed.ray_folder)
        return 0
    unknown = [name for name in parsed.launchers if name not in LAUNCHERS]
    if unknown:
        parser.error(f"launchers must be of {', '.join(LAUNCHERS)}, got {', '.join(unknown)}")
    python = parsed.python.absolute()  # not resolved: a virtual environment is a link
    results = [passes(name, python) for name in parsed.launchers]  # also after one has failed
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
