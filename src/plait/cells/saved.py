"""What a step keeps for its derivative, if the author does not say.

The derivative needs values of the step. A value can be kept (one column in memory, for each step in time) or computed
again from others. The old states, the new states and the per-unit vectors are there anyway. So:

1. As few values as possible are kept: the smallest set that stands between the step's inputs (W x + b and R h + c) and
   all that the derivative computes. That is a minimum vertex cut of the graph. Values that depend on the incoming
   gradient do not exist yet when the step runs, and comparisons are not numbers: neither can be kept. Of equally small
   sets the one nearest to the results is taken: it leaves the least to compute again.
2. There are as many columns as gates in any case, for their gradients. While there is room in them, the results of
   functions that would be computed again are kept as well: all of them, or else the one that saves most (COST) first.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf

from .graph import COMPARISONS, Node, in_order

# Of a value that is computed again, in additions. What is not here costs one.
COST = {"sigmoid": 15, "tanh": 15, "exp": 15, "log": 20, "softplus": 40, "sqrt": 10, "div": 5}
WORTH = 10  # what costs less is computed again


def choose(results: Sequence[Node], at_hand: set[Node], d_new: set[Node], columns: int) -> list[Node]:
    """The nodes to save, beside what is at hand, in order of computation."""
    later = reached_from(d_new, results)

    def can_be_kept(node: Node) -> bool:
        return node not in later and node.op not in COMPARISONS

    def computed(kept: set[Node]) -> list[Node]:
        return in_order(results, lambda node: node in kept or node in at_hand)

    def cost(kept: set[Node]) -> int:
        return sum(COST.get(node.op, 1) for node in computed(kept) if node not in later)

    def useful(kept: set[Node]) -> set[Node]:
        """Without those that were kept to compute what is kept now."""
        used = {a for node in computed(kept) if node.op != "input" for a in node.args}
        return kept & (used | set(results))

    kept = smallest_cut(computed(d_new), results, can_be_kept)
    room = max(columns, len(kept))
    while again := [node for node in computed(kept) if can_be_kept(node) and COST.get(node.op, 1) >= WORTH]:
        best = min(again, key=lambda node: cost(kept | {node}))
        choices = (useful(kept | set(again)), useful(kept | {best}))
        fitting = [some for some in choices if len(some) <= room]
        if not fitting:
            break
        kept = fitting[0]
    return [node for node in in_order(results) if node in kept]


def reached_from(starts: set[Node], results: Iterable[Node]) -> set[Node]:
    reached = set(starts)
    for node in in_order(results):
        if node.op != "input" and not reached.isdisjoint(node.args):
            reached.add(node)
    return reached


def smallest_cut(nodes: Sequence[Node], results: Sequence[Node], can_be_kept: Callable[[Node], bool]) -> set[Node]:
    """A minimum vertex cut, by augmenting paths. Node k is the points 2 k and 2 k + 1."""
    index = {node: k for k, node in enumerate(nodes)}
    source, sink = -1, -2
    room: dict[int, dict[int, float]] = {point: {} for point in (source, sink, *range(2 * len(nodes)))}

    def connect(a: int, b: int, capacity: float) -> None:
        room[a][b] = capacity
        room[b].setdefault(a, 0)

    for node, k in index.items():
        connect(2 * k, 2 * k + 1, 1 if can_be_kept(node) else inf)
        if node.op == "input":
            connect(source, 2 * k, inf)
            continue
        for a in node.args:
            if a in index:
                connect(2 * index[a] + 1, 2 * k, inf)
    for node in results:
        if node in index:
            connect(2 * index[node] + 1, sink, inf)
    while True:
        onward = {sink: sink}  # every point with a path to the sink -> its next point
        queue = [sink]
        for point in queue:
            for before in room[point]:
                if room[before][point] > 0 and before not in onward:
                    onward[before] = point
                    queue.append(before)
        if source not in onward:
            return {node for node, k in index.items() if 2 * k + 1 in onward and 2 * k not in onward}
        point = source
        while point != sink:
            after = onward[point]
            room[point][after] -= 1
            room[after][point] += 1
            point = after
