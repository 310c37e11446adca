"""One line replaces PyTorch's attention by heed's, in a model that trains. Needs torch."""

import torch
import torch.nn.functional as F

import heed.torch


class Block(torch.nn.Module):
    def __init__(self, size: int, heads: int, attention) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = torch.nn.LayerNorm(size), torch.nn.LayerNorm(size)
        self.qkv, self.mix = torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)
        self.ffn = torch.nn.Sequential(
            torch.nn.Linear(size, 4 * size), torch.nn.GELU(), torch.nn.Linear(4 * size, size)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.mix(self.attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.ffn(self.norm2(x))


class Model(torch.nn.Module):
    """Predicts the next letter."""

    def __init__(self, attention) -> None:
        super().__init__()
        self.letters, self.places = torch.nn.Embedding(128, 32), torch.nn.Embedding(64, 32)
        self.blocks = torch.nn.Sequential(*(Block(32, 4, attention) for _ in range(2)))
        self.head = torch.nn.Linear(32, 128)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1])
        return self.head(self.blocks(self.letters(tokens) + self.places(places)))


def train(attention, steps: int = 60) -> list[float]:
    torch.manual_seed(0)
    model = Model(attention)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    text = torch.tensor(list(("to heed is to pay attention; to attend is to heed. " * 40).encode()))
    losses = []
    for _ in range(steps):
        starts = torch.randint(0, len(text) - 65, (8,))
        batch = torch.stack([text[s : s + 65] for s in starts])
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    with_torch = train(F.scaled_dot_product_attention)
    with_heed = train(heed.torch.scaled_dot_product_attention)  # the one line
    for step in (0, 19, 39, 59):
        print(
            f"step {step + 1:2}: loss {with_torch[step]:.4f} with PyTorch's attention, "
            f"{with_heed[step]:.4f} with heed's"
        )
    assert max(abs(a - b) for a, b in zip(with_torch, with_heed)) < 0.05
    assert with_heed[-1] < 0.5 * with_heed[0]


if __name__ == "__main__":
    main()
