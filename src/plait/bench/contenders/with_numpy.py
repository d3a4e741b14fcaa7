"""NumPy: the expert's step of plait.bench.expert, which uses nothing but NumPy."""

from plait.bench.expert import Expert

from .network import WEIGHTS, Array, Contender, Network


class NumPy(Contender):
    def __init__(self, net: Network) -> None:
        B, T, *_ = net.sizes
        layer = {name: net.weights[name] for name in WEIGHTS[:4]}
        self.net, self.expert = net, Expert(net.cell, layer, (net.w_out, net.b_out), B, T)

    def run(self, steps: int) -> float:
        loss = float("nan")
        for _ in range(steps):
            loss = self.expert.step(self.net.x, self.net.y, self.net.rate)
        return loss

    def weights(self) -> dict[str, Array]:
        w_out, b_out = self.expert.head
        return {**self.expert.weights, "w_out": w_out, "b_out": b_out}


def prepare(net: Network, variant: str) -> NumPy:
    return NumPy(net)
