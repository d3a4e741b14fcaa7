"""What three public reports say: their figures, what they timed, where, and what of that is not known.

Only what stands in a report is here. A figure that it does not give is None.
"""

from dataclasses import dataclass

PACKED = {  # L -> the time of a packed over that of a padded LSTM, in %: forward, backward
    10: (526.90, 277.19),
    20: (739.90, 460.88),
    50: (1162.63, 381.99),
    100: (1506.77, 395.81),
    200: (2300.32, 590.51),
    500: (5967.95, 1715.68),
    1000: (9583.25, 2793.80),
    2000: (10983.58, 5242.34),
    4000: (11384.78, 8090.40),
}


@dataclass(frozen=True)
class Told:
    where: str
    timed: str
    machine: str
    unknown: str

    @property
    def lines(self) -> list[str]:
        return [f"{self.where}: {self.timed}.", f"  Its machine: {self.machine}. Not given: {self.unknown}."]


REPORTS = {
    "149194": Told(
        "pytorch/pytorch#149194 (2025)",
        "2 LSTM layers, lengths from 1 to L in even steps, packed; % of the time of a padded batch",
        "2 x AMD EPYC 7643 (96 cores) with an NVIDIA GPU, and which of them the table is of is not said",
        "seconds; batch, inputs and units (here: --sizes)",
    ),
    "4154": Told(
        "pytorch/rl#4154 (2026)",
        "a GRU of TorchRL, eager, forward and backward, median: 100.7 ms before the change, 10.2 ms after",
        "'local CPU'",
        "its name, threads",
    ),
    "81634": Told(
        "pytorch/pytorch#81634 (2022)",
        "forward of 2 LSTM layers, weights that require grad, torch 1.12, the first call of a process: about 200 s",
        "an AMD CPU; an Intel CPU takes 0.75 s",
        "threads; a training step",
    ),
}
GRU_MS = 10.2  # the better one of rl#4154
AMD_MS = 200e3  # of #81634
