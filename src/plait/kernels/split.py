"""How the threads share a walk: each has a slice of the batch (Layout.shares), or some of the units of every step."""

from ..layout import Layout
from .costs import Costs
from .target import Form

GAIN = 1.05  # sharing units must be this much faster to be chosen


def by_units(costs: Costs, form: Form, layout: Layout, H: int, walks: int, threads: int) -> bool:
    """Whether the threads share the units. Then they meet after each step, which takes time. But no thread is idle if
    there are few sequences, and each reads only its own part of the weights.
    """
    blocks, B = -(-H // form.target.width), layout.B
    if threads == 1 or blocks < threads or form.projected:
        return False
    numbers = form.G * H * H
    row, size = numbers * form.target.size / 4 / costs.rate, numbers * form.target.size
    stream = size / costs.stream if size > costs.cache else 0.0
    parts = max(1, min(B, -(-threads // walks)))
    by_batch = -(-walks * parts // threads) * (-(-B // parts) * row + stream)
    share = -(-blocks // threads) / blocks
    return (walks * share * (B * row + stream) + costs.team) * GAIN < by_batch
