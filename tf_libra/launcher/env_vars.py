"""Environment variables that TF-Libra reads, for docs/options.md and `tf-libra run --help`."""

from dataclasses import dataclass

from tf_libra.internal.registry import Registry, load_systems


@dataclass(frozen=True)
class EnvVar:
    """An environment variable.

    Attributes:
        name: name of the variable.
        default: text about the default.
        what: text about its effect, a sentence without a full stop.
    """

    name: str
    default: str
    what: str


_CORE_VARIABLES = (
    EnvVar("TF_LIBRA_LOG_LEVEL", "info", "log level of rank 0: debug, info, warning or error"),
    EnvVar(
        "TF_LIBRA_TIMEOUT_SECONDS",
        "600",
        "how long to wait for another rank at most, if `timeout_seconds` is not passed",
    ),
    EnvVar(
        "TF_LIBRA_LIVENESS_SECONDS",
        "10",
        "after how long a silent host counts as lost, if `liveness_seconds` is not passed",
    ),
    EnvVar(
        "TF_LIBRA_LAUNCHER",
        "auto",
        "where rank and size are read: auto, torchrun, tf-config, slurm, mpi, keras, horovod, or"
        " none for one process (docs/launchers.md)",
    ),
    EnvVar(
        "TF_LIBRA_SECRET",
        "no secret",
        "secret by which ranks authenticate at the rendezvous at rank 0, the same on all ranks",
    ),
    EnvVar(
        "TF_LIBRA_SECRET_FILE",
        "not set",
        "file of mode 600 that contains the secret, instead of `TF_LIBRA_SECRET`",
    ),
    EnvVar(
        "TF_LIBRA_INTERFACE",
        "that of `HOROVOD_GLOO_IFACE`, or the one that reaches rank 0; none on one host",
        "the network interface between hosts, such as eth0",
    ),
    EnvVar(
        "TF_LIBRA_PORTS",
        "any free port",
        "ports at which ranks may listen for each other, such as 20000-20063",
    ),
    EnvVar(
        "TF_LIBRA_ZERO_BLOCKS",
        "omit",
        "send: blocks of zeros in gradients travel, too (docs/zero_blocks.md)",
    ),
    EnvVar(
        "TF_LIBRA_NCCL_NEXT_TUNER",
        "NCCL's own choice",
        "library of another NCCL tuner, which gets the collectives that a plan does not know",
    ),
    EnvVar(
        "TF_LIBRA_TRACEBACK",
        "only the script's frames",
        "full: show the frames of libraries in tracebacks under `tf-libra run`",
    ),
    EnvVar(
        "TF_LIBRA_LAUNCHED",
        "not set",
        "set by `tf-libra run` for its workers, not by hand",
    ),
)

VARIABLES: Registry[EnvVar] = Registry("variable", load_systems)
for variable in _CORE_VARIABLES:
    VARIABLES.add(variable.name, variable)


def table() -> str:
    """Returns the variables as a table for docs/options.md."""
    rows = [
        f"| `{variable.name}` | {variable.default} | {variable.what} |"
        for variable in VARIABLES.values()
    ]
    return "\n".join(["| variable | default | effect |", "|---|---|---|", *rows])


def text() -> str:
    """Returns the variables as text for a terminal."""
    width = max(len(variable.name) for variable in VARIABLES.values())
    return "\n".join(
        f"  {variable.name:<{width}}  {variable.what.replace('`', '')}"
        for variable in VARIABLES.values()
    )
