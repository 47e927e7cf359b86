"""The commands of docs/multi_node.md: shells and parsers take them, and its numbers fit."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "multi_node.md"
NUM_RANKS, NUM_HOSTS, PER_HOST = 16, 8, 2


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_shells_take_the_scripts() -> None:
    scripts = blocks("bash")
    assert scripts
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, ""), script


def test_hosts_of_a_batch_script_are_written_as_horovodrun_takes_them() -> None:
    """Runs the script's own line, with a Slurm that has two nodes."""
    [line] = re.findall(r"^hosts=.*$", PAGE.read_text(), re.MULTILINE)
    slurm = "scontrol() { printf 'node1\\nnode2\\n'; }"
    done = subprocess.run(
        ["bash", "-c", f'{slurm}; {line}; echo "$hosts"'],
        text=True,
        capture_output=True,
        check=True,
    )
    from horovod.runner.common.util.hosts import parse_hosts

    found = [(host.hostname, host.slots) for host in parse_hosts(done.stdout.strip())]
    assert found == [("node1", PER_HOST), ("node2", PER_HOST)]


def test_ranks_and_slots_agree() -> None:
    text = PAGE.read_text()
    [(ranks, hosts)] = re.findall(r"horovodrun -np (\d+) -H (\S+)", text.replace("\\\n", ""))
    slots = [int(host.partition(":")[2]) for host in hosts.split(",")]
    assert (int(ranks), len(slots), set(slots)) == (NUM_RANKS, NUM_HOSTS, {PER_HOST})
    assert f"#SBATCH --nodes={NUM_HOSTS}\n#SBATCH --ntasks-per-node={PER_HOST}" in text


def test_the_job_is_one_that_the_operator_takes() -> None:
    manifest = ROOT / "examples" / "kubernetes" / "mpijob.yaml"
    assert f"../{manifest.relative_to(ROOT)}" in PAGE.read_text()
    job = yaml.safe_load(manifest.read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
    assert launcher["replicas"] == 1
    [container] = launcher["template"]["spec"]["containers"]
    words = container["args"]
    assert all(isinstance(word, str) for word in words)
    assert int(words[words.index("-np") + 1]) == worker["replicas"] * spec["slotsPerWorker"]
    name = job["metadata"]["name"]
    exported = [words[i + 1] for i, word in enumerate(words) if word == "-x"]
    assert exported == [f"MASTER_ADDR={name}-worker-0.{name}", "MASTER_PORT=29500"]


@pytest.mark.parametrize("text", re.findall(r"TF_LIBRA_PORTS=([\d-]+)", PAGE.read_text()))
def test_ports_are_a_range_that_is_understood(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tf_libra.backends.lanes_bootstrap import listening_ports

    monkeypatch.setenv("TF_LIBRA_PORTS", text)
    ports = listening_ports()
    assert ports is not None
    assert ports[1] - ports[0] + 1 >= PER_HOST
