"""Every environment variable that TF-Libra reads, for docs/options.md and `tf-libra run --help`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EnvVar:
    """An environment variable.

    Attributes:
        name: of the variable.
        default: what is taken where it is not set, in words.
        what: what it does, a sentence without a full stop.
    """

    name: str
    default: str
    what: str


VARIABLES = (
    EnvVar("TF_LIBRA_LOG_LEVEL", "info", "debug, info, warning or error; what rank 0 says"),
    EnvVar(
        "TF_LIBRA_TIMEOUT_SECONDS",
        "600",
        "how long to wait for another rank at most, where `timeout_seconds` is not given",
    ),
    EnvVar(
        "TF_LIBRA_LIVENESS_SECONDS",
        "10",
        "after how long a host that does not answer is lost, where `liveness_seconds` is not given",
    ),
    EnvVar(
        "TF_LIBRA_INTERFACE",
        "that of `HOROVOD_GLOO_IFACE`, or the address in `TF_CONFIG`; none on one host",
        "the network interface between hosts, such as eth0",
    ),
    EnvVar(
        "TF_LIBRA_PORTS",
        "any free port",
        "where ranks may listen for each other, such as 20000-20063",
    ),
    EnvVar(
        "TF_LIBRA_TRACEBACK",
        "the script's frames alone",
        "full: tracebacks under `tf-libra run` with the frames of libraries, too",
    ),
    EnvVar(
        "TF_LIBRA_BACKGROUND",
        "none",
        "what runs beside training on every rank; `tf-libra run --background` sets it",
    ),
    EnvVar(
        "TF_LIBRA_BACKGROUND_MAX_SLOWDOWN",
        "0.05",
        "by how much it may make steps longer; `tf-libra run --max-slowdown` sets it",
    ),
    EnvVar(
        "TF_LIBRA_BACKGROUND_RANK",
        "not set",
        "tells a background job beside which rank it runs; nothing to set by hand",
    ),
    EnvVar(
        "TF_LIBRA_BACKGROUND_COUNT",
        "not set",
        "tells a background job which file holds the number of its steps, eight bytes, a"
        " little-endian integer; nothing to set by hand",
    ),
    EnvVar(
        "TF_LIBRA_LAUNCHED",
        "not set",
        "set by `tf-libra run` for its workers, which then end as it says; nothing to set by hand",
    ),
)


def table() -> str:
    """The variables as a table for docs/options.md."""
    rows = [f"| `{one.name}` | {one.default} | {one.what} |" for one in VARIABLES]
    return "\n".join(["| variable | where it is not set | what it does |", "|---|---|---|", *rows])


def text() -> str:
    """The variables as text for a terminal."""
    width = max(len(one.name) for one in VARIABLES)
    return "\n".join(f"  {one.name:<{width}}  {one.what.replace('`', '')}" for one in VARIABLES)
