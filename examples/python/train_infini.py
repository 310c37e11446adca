"""Trains a small PyTorch model with Infini-attention. Needs torch.

Sixteen random letters, again and again. Attention sees one segment of sixteen, so within it no letter can be foreseen;
the compressive memory holds the segments before. A loss below log(letters) is the memory's work.
"""

import math

import torch
import torch.nn.functional as F

import heed.torch

LETTERS, SEGMENT, REPEATS, SIZE, HEADS = 8, 16, 3, 64, 4


class InfiniLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(SIZE)
        self.qkv, self.mix = torch.nn.Linear(SIZE, 3 * SIZE), torch.nn.Linear(SIZE, SIZE)
        self.gates = torch.nn.Parameter(torch.zeros(HEADS))
        self.ffn = torch.nn.Sequential(
            torch.nn.LayerNorm(SIZE), torch.nn.Linear(SIZE, 4 * SIZE), torch.nn.GELU(), torch.nn.Linear(4 * SIZE, SIZE)
        )

    def forward(self, x: torch.Tensor, state=None):
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        out, state = heed.torch.infini_attention(q * 3, k * 3, v, self.gates, state, segment=SEGMENT, update="delta")
        x = x + self.mix(out.transpose(1, 2).flatten(2))
        return x + self.ffn(x), state


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = torch.nn.Embedding(LETTERS, SIZE), torch.nn.Embedding(SEGMENT, SIZE)
        self.layer = InfiniLayer()
        self.head = torch.nn.Linear(SIZE, LETTERS)

    def forward(self, tokens: torch.Tensor, state=None):
        places = torch.arange(tokens.shape[1]) % SEGMENT
        x, state = self.layer(self.letters(tokens) + self.places(places), state)
        return self.head(x), state


def main(steps: int = 250) -> None:
    torch.manual_seed(0)
    model = Model()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    known = []
    for step in range(steps):
        text = torch.randint(0, LETTERS, (16, SEGMENT)).repeat(1, REPEATS)
        # A segment a call, as a long text would be read: gradients pass from call to call through the state.
        state, logits = None, []
        for begin in range(0, text.shape[1], SEGMENT):
            part, state = model(text[:, begin : begin + SEGMENT], state)
            logits.append(part)
        # The first segment cannot be foreseen, nor what follows a segment from inside it.
        predicted = torch.cat(logits, 1)[:, SEGMENT:-1]
        loss = F.cross_entropy(predicted.flatten(0, 1), text[:, SEGMENT + 1 :].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        known.append(loss.item())
        if step % 50 == 49:
            print(
                f"step {step + 1:3}: loss {sum(known[-20:]) / 20:.3f}, without memory at best {math.log(LETTERS):.3f}"
            )
    print("share of the memory in each head:", [round(x, 2) for x in torch.sigmoid(model.layer.gates).tolist()])
    assert sum(known[-20:]) / 20 < 0.5 * math.log(LETTERS)


if __name__ == "__main__":
    main()
