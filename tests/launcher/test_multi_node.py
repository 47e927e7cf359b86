"""The commands of docs/multi_node.md: shells and parsers take them, and its numbers fit."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

PAGE = Path(__file__).resolve().parents[2] / "docs" / "multi_node.md"
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
    [document] = blocks("yaml")
    job = yaml.safe_load(document)
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
    assert (launcher["replicas"], worker["replicas"]) == (1, NUM_HOSTS)
    [container] = launcher["template"]["spec"]["containers"]
    command = container["command"]
    assert all(isinstance(word, str) for word in command)
    assert int(command[command.index("-np") + 1]) == worker["replicas"] * spec["slotsPerWorker"]
    named = {command[i + 1].partition("=")[0] for i, word in enumerate(command) if word == "-x"}
    assert named == {"PATH", "LD_LIBRARY_PATH", "TF_LIBRA_INTERFACE", "TF_LIBRA_PORTS"}
    pod = worker["template"]["spec"]
    mounts = {
        mount["name"]
        for container_spec in pod["containers"]
        for mount in container_spec["volumeMounts"]
    }
    assert mounts == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("text", re.findall(r"TF_LIBRA_PORTS=([\d-]+)", PAGE.read_text()))
def test_ports_are_a_range_that_is_understood(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tf_libra.backends.lanes_bootstrap import listening_ports

    monkeypatch.setenv("TF_LIBRA_PORTS", text)
    ports = listening_ports()
    assert ports is not None
    assert ports[1] - ports[0] + 1 >= PER_HOST
