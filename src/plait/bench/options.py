"""Options that several benchmarks have: a type and its sentence for --help. A third part names the value there."""

from typing import Annotated

ABOUT_SHAPES = "B,T,I,H,layers: batch, steps, inputs, units, layers; several with spaces."

Repeats = Annotated[int, "Measurements of each contender, at least 5."]
Seed = Annotated[int, "Seed of everything random."]
CellName = Annotated[str, "lstm, gru or rnn."]
CellNames = Annotated[str, "Of lstm, gru and rnn, with commas."]
Engine = Annotated[str, "What runs plait's layers; see `plait engines`."]
Text = Annotated[str | None, "A text file, a folder or a zip, such as Penn Treebank's."]
