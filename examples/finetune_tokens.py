#!/usr/bin/env python3
"""Fine-tunes a small language model on texts, from rows that are packed with the tokens of many documents.

    finetune_tokens.py --model model.pt              trains a new model on short sums, and keeps it in model.pt
    finetune_tokens.py --model model.pt --texts DIR  goes on from model.pt, with a document for each file of DIR

Tokens are bytes here, so that no tokenizer is needed; dlfs.import_(..., tokenizer=FILE) takes one.
"""

import argparse
import pathlib
import tempfile

import torch
from torch import nn

import dlfs.tokens

END, LENGTH, WIDTH, HEADS = 0, 64, 64, 4  # the token behind a document, tokens of a row, numbers of a token


class Model(nn.Module):
    """A transformer that says for each token which one follows."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, num_layers=2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 256)

    def forward(self, rows):
        # A row has parts of several documents: a token sees those before it in its own document.
        other = rows.segment_ids[:, :, None] != rows.segment_ids[:, None, :]
        hidden = other | torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=other.device).triu(1)
        x = self.tokens(rows.tokens) + self.positions(rows.position_ids)
        return self.out(self.blocks(x, hidden.repeat_interleave(HEADS, 0)))


def main(given, image):
    # Each document is a sample: a list of tokens, with a checksum. Later runs could open the same image again.
    texts = (path.read_bytes() for path in sorted(given.texts.glob("*"))) if given.texts else None
    with dlfs.Writer(image, {"tok": "u8[*]"}) as out:
        for text in texts or (b"%d and %d are %d." % (n % 37, n % 41, n % 37 + n % 41) for n in range(1000)):
            out.write({"tok": text})

    torch.manual_seed(7)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Model().to(device)
    if given.model.exists():
        model.load_state_dict(torch.load(given.model, map_location=device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    # Native threads fill rows of LENGTH tokens; labels are the tokens that follow.
    with dlfs.open(image) as corpus, dlfs.tokens.Loader(
        corpus, LENGTH, 16, separator=END, seed=7, segment_ids=True, position_ids=True
    ) as loader:
        for epoch in range(given.epochs):
            losses = []
            for rows in loader:
                rows = rows.to(device)
                loss = nn.functional.cross_entropy(model(rows).flatten(0, 1), rows.labels.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: {len(losses)} steps, loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")
    torch.save(model.state_dict(), given.model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--texts", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=2)
    with tempfile.TemporaryDirectory() as scratch:
        main(parser.parse_args(), f"{scratch}/corpus.dlfs")
