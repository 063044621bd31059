"""The modules whose graphs lie beside this file; "make graphs" writes them anew."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MLP(nn.Module):
    def __init__(self, width=64, hidden=256, classes=10):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(hidden)
        self.down = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.down(self.norm(self.drop(self.act(self.up(x)))))


class Gate(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.fc(self.pool(x)))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, 2 * c, 3, 2, 1), nn.GroupNorm(8, 2 * c), nn.SiLU(), Gate(2 * c)) for c in (32, 64)
        )
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        x = F.max_pool2d(x, 2)
        return self.head(x.mean(dim=(2, 3)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(d, dim=2)
        q = q.view(b, t, self.heads, d // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, d // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, d // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(b, t, d))
        return x + self.mlp(self.ln2(x))


class Transformer(nn.Module):
    def __init__(self, vocabulary=1000, width=128, heads=4, layers=4, tokens=64):
        super().__init__()
        self.tok = nn.Embedding(vocabulary, width)
        self.pos = nn.Parameter(torch.zeros(1, tokens, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Odd(nn.Module):
    """Has an operation that no rule is known for."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 64)
        self.b = nn.Linear(64, 10)

    def forward(self, x):
        return self.b(torch.special.erfcx(self.a(x)))


def resnet18():
    import torchvision

    return torchvision.models.resnet18()
