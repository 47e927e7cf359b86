"""Table of predicted steps: a row for each plan, and one for one worker."""

from typing import Any

from tf_libra.cli.command import print_json
from tf_libra.internal import formatting
from tf_libra.planning.one_worker import one_worker_seconds
from tf_libra.simulation import Timeline
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


def plan_row(plan: Plan, timeline: Timeline, first: dict[str, Any]) -> dict[str, Any]:
    """Returns the row of a plan, which begins with the columns of `first`."""
    threads = plan.thread_counts
    return (
        first
        | {
            "backward_seconds": timeline.backward_seconds,
            "step_seconds": timeline.step_seconds,
            "computation_end_seconds": timeline.computation_end_seconds,
            "residual_communication_seconds": sum(
                stage.residual_communication_seconds for stage in timeline.stages
            ),
            "groups": len(plan.groups),
            "threads": threads,
        }
        | ({"forward_delay_seconds": timeline.forward_delay_seconds} if plan.gathers else {})
    )


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Prints rows as a table, whose first column is the first of a row, or as JSON."""
    if as_json:
        print_json(rows)
        return
    key = next(iter(rows[0]))
    columns = {
        "backward": "backward_seconds",
        "with updates": "step_seconds",
        "computation": "computation_end_seconds",
        "residual": "residual_communication_seconds",
        "forward delay": "forward_delay_seconds",
        "whole step": "whole_step_seconds",
    }
    columns = {title: name for title, name in columns.items() if any(name in row for row in rows)}
    titles = "".join(f"{title:>14}" for title in columns)
    print(f"{key:<16}{titles}{'groups':>8}  threads")
    for row in rows:
        times = "".join(
            f"{formatting.time(row[name]) if name in row else '':>14}" for name in columns.values()
        )
        threads = ",".join(map(str, row["threads"]))
        print(f"{row[key]!s:<16}{times}{row['groups']:>8}  {threads}")


def with_rest(row: dict[str, Any], rest_seconds: float | None) -> dict[str, Any]:
    """Returns a row with the seconds of the whole step, if they are known."""
    if rest_seconds is None:
        return row
    return row | {"whole_step_seconds": rest_seconds + row["step_seconds"]}


def one_worker_row(
    profile: BackwardProfile, rest_seconds: float, num_workers: int
) -> dict[str, Any]:
    """Returns the row of one worker on the joint batch, whose times are upper bounds."""
    backward = num_workers * float(profile.compute_after[0])
    return {
        "strategy": "one worker",
        "backward_seconds": backward,
        "step_seconds": backward + float(profile.updates_before[-1]),
        "computation_end_seconds": backward,
        "residual_communication_seconds": 0.0,
        "groups": 0,
        "threads": [],
        "whole_step_seconds": one_worker_seconds(profile, rest_seconds, num_workers),
    }
