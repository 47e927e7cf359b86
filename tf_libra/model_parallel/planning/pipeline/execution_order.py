"""Execution order of microbatches (PE): SPP, Algorithm 1, lines 1 to 8."""

from tf_libra.specs.pipeline import Computation


def execution_orders(num_stages: int, num_microbatches: int) -> list[tuple[Computation, ...]]:
    """Return U_s, the order of each stage's computation blocks.

    A microbatch passes 4S - 3 blocks: computation and transfers forward, the last stage's forward
    and backward as one, transfers and computation backward. A pass over the blocks moves at most
    one microbatch through each, and sees the queues as they were when it began (Fig. 4). All
    microbatches start before the first block, so pass t takes microbatch t - j through block j. A
    stage's order is therefore that of m + j, and in one pass forward precedes backward.
    """
    last = 4 * num_stages - 4
    orders = []
    for stage in range(num_stages):
        places: dict[Computation, tuple[int, int]] = {}
        for microbatch in range(num_microbatches):
            places["forward", microbatch] = microbatch + 2 * stage, 0
            places["backward", microbatch] = microbatch + last - 2 * stage, 1
        orders.append(tuple(sorted(places, key=places.__getitem__)))
    return orders
