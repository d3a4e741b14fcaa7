"""What does cutting time bring, how far off is it, and where is one exact walk faster? With --quick under 3 minutes.

Sections, as --parts names them: long (networks that remember, one sequence at a time), length (time of a step against
the number of steps), error (of the gradient, against warm-ups and iterations), residual (by iteration, on coarse
steps), where (sizes at which one walk wins), features (time of a batch against the width of its input), learning
(accuracy by epoch), ranks (time ranks, measured to 2 and predicted beyond).
"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    data: str | None = option(None, "Sequences with labels, such as UCI HAR.  (default: made up, as UCI HAR)")
    parts: str | None = options.parts()
    quick: bool = options.quick("Small networks and short sequences: all tables in under 3 minutes.")
    picture: str | None = options.picture()
    repeats: int = options.repeats(7)
