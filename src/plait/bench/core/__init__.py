"""What the questions of `plait bench` share.

turns       how contenders take turns, and the spread of what was timed
progress    a line every few seconds, and which part is measured
report      what is printed and written: question, environment, tables, remarks
sections    a question that has several parts, as --parts names them
pictures    sections as panels of one picture
steps       layers and batches, as --shapes names them; a training step of torch.nn's layer beside plait's
memory      memory and pages of a step
malloc      measuring with malloc as it comes, or with one that keeps what was freed
blas        threads of NumPy's products
job         several processes that measure together
peak        what the register tile reaches from the first cache
"""

from .progress import tracked
from .report import Report
from .turns import Laps, Row, Seconds, Spread, ratio, spread, take_turns

__all__ = ["Laps", "Report", "Row", "Seconds", "Spread", "ratio", "spread", "take_turns", "tracked"]
