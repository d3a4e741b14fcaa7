"""The tagger of parts of speech, with the sizes that stanza gives it, on sentences that are made up."""

import numpy as np
import torch
from program import Accelerate, Program
from stanza.models.pos.data import Dataset
from stanza.models.pos.trainer import Trainer
from stanza.models.tagger import parse_args
from stanza.utils.conll import CoNLL
from torch import Tensor

SENTENCES, LETTERS, TAGS = 8, "abcdefghijklmnopqrstuvwxyz", ("NOUN", "VERB", "ADJ", "ADV", "DET", "PUNCT")
OPTIONS = {"POS": [], "POS, rec_dropout": ["--rec_dropout", "0.3"]}


def sentences() -> str:
    """In the CoNLL-U format, of 4 to 30 words."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list(LETTERS), rng.integers(1, 11))) for _ in range(100)]
    lines = []
    for _ in range(SENTENCES):
        for k in range(1, rng.integers(4, 31)):
            word, tag = rng.integers(len(words)), rng.integers(len(TAGS))
            lines.append(f"{k}\t{words[word]}\t_\t{TAGS[tag]}\tX{tag}\tNumber=Sing\t{k - 1}\tdep\t_\t_")
        lines.append("")
    return "\n".join(lines) + "\n"


def build(case: str, accelerate: Accelerate) -> Program:
    options = ["--no_pretrain", "--shorthand", "en_test", "--augment_nopunct", "0", *OPTIONS[case]]
    args = parse_args(options)
    data = Dataset(CoNLL.conll2doc(input_str=sentences()), args, None)
    trainer = Trainer(args, data.vocab, device="cpu")
    accelerate(trainer.model)
    (batch,) = data.to_loader(batch_size=SENTENCES)
    seen: list[Tensor] = []
    trainer.model.upos_hid.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))

    def train() -> float:
        seen.clear()
        return trainer.update(batch)

    @torch.no_grad()
    def infer() -> Tensor:
        seen.clear()
        trainer.predict(batch)
        return seen[0]

    return Program(trainer.model, train, infer)
