"""The models of the examples, as plain torch modules: a transformer, a ResNet, and one that is all communication."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention. The number of heads follows from the width of q, so a rank may hold some heads only."""

    def __init__(self, dim: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, dim: int, head_dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, head_dim)
        self.mlp = FeedForward(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A decoder: tokens (batch, length) in, logits (batch, length, vocabulary) out."""

    def __init__(self, vocabulary: int = 256, dim: int = 64, layers: int = 2, head_dim: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, head_dim) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def next_token_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of predicting each token from those before it."""
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def text(batch: int, length: int, seed: int, vocabulary: int = 256) -> torch.Tensor:
    """Tokens with something to learn: each is the one before plus a step that stays the same along a line."""
    random = torch.Generator().manual_seed(seed)
    start = torch.randint(vocabulary, (batch, 1), generator=random)
    stride = torch.randint(1, 4, (batch, 1), generator=random)
    return (start + stride * torch.arange(length)) % vocabulary


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut; the stride sits on the 3x3."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet(depths: Sequence[int] = (3, 8, 36, 3), width: int = 64, classes: int = 1000) -> nn.Sequential:
    """A bottleneck ResNet; the default is ResNet-152 (He et al. 2015, table 1), 60.2 million parameters."""
    layers: list[tuple[str, nn.Module]] = [
        ("stem", nn.Conv2d(3, width, 7, 2, padding=3, bias=False)),
        ("norm", nn.BatchNorm2d(width)),
        ("relu", nn.ReLU(inplace=True)),
        ("pool", nn.MaxPool2d(3, 2, padding=1)),
    ]
    channels = width
    for stage, depth in enumerate(depths):
        for number in range(depth):
            stride = 2 if number == 0 and stage > 0 else 1
            layers.append((f"stage{stage}_{number}", Bottleneck(channels, width << stage, stride)))
            channels = 4 * (width << stage)
    layers += [("mean", nn.AdaptiveAvgPool2d(1)), ("flat", nn.Flatten()), ("head", nn.Linear(channels, classes))]
    return nn.Sequential(OrderedDict(layers))


def wide(width: int = 8192, layers: int = 4, classes: int = 1000) -> nn.Sequential:
    """Large gradients and little compute: what a job looks like whose step is all communication."""
    hidden: list[nn.Module] = []
    for _ in range(layers):
        hidden += [nn.Linear(width, width, bias=False), nn.ReLU()]
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, width), *hidden, nn.Linear(width, classes)
    )
