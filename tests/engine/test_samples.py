"""Biases belong to the sample that they were added for, wherever a model puts its samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from tiny import bert

WIDTH = 6


class Restacked(nn.Module):
    """Attention, and a linear layer with a bias on samples that lie in some order."""

    def __init__(self, body: Callable[[Restacked, Tensor], Tensor], time_first: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, WIDTH)
        self.linear, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.body, self.time_first = body, time_first

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        if not self.time_first:
            x = x + F.scaled_dot_product_attention(x, x, x)
        x = self.body(self, x)
        weights = torch.arange(1, x.shape[0 if self.time_first else 1] + 1, dtype=x.dtype)
        x = torch.tanh(x) * (weights[:, None, None] if self.time_first else weights[:, None])
        if self.time_first:
            y = x.transpose(0, 1)
            x = x + F.scaled_dot_product_attention(y, y, y).transpose(0, 1)
        return self.last(x.mean(0 if self.time_first else 1))


def by_time(x: Tensor) -> Tensor:
    return torch.stack(x.unbind(1))


def by_sample(x: Tensor) -> Tensor:
    return torch.stack(x.unbind(1))


def heads(m: Restacked, x: Tensor) -> Tensor:
    """Time first and flattened, with as many heads as there may be samples."""
    rows = m.linear(by_time(x).reshape(-1, WIDTH)).view(-1, 3, 2)
    rows = rows + m.bias.view(3, 2)
    return by_sample(rows.reshape(x.shape[1], x.shape[0], WIDTH))


def one_by_one(m: Restacked, x: Tensor) -> Tensor:
    return torch.stack([m.linear(one) for one in x])


def sorted_samples(m: Restacked, x: Tensor) -> Tensor:
    order = torch.arange(len(x)).flip(0)
    return m.linear(x[order])[order.argsort()]


def split_samples(m: Restacked, x: Tensor) -> Tensor:
    return torch.cat([m.linear(part) for part in x.split(2)[::-1]][::-1])


RESTACKED: dict[str, Callable[[Restacked, Tensor], Tensor]] = {
    "as they are": lambda m, x: m.linear(x),
    "stack and unbind": lambda m, x: by_sample(m.linear(by_time(x))),
    "stack of slices": lambda m, x: torch.stack(
        list(m.linear(torch.stack([x[:, i] for i in range(x.shape[1])]))), 1),
    "cat": lambda m, x: torch.stack(
        m.linear(torch.cat([x[:, i] for i in range(x.shape[1])])).split(len(x)), 1),
    "cat and chunk": lambda m, x: torch.cat(
        [one[:, None] for one in m.linear(torch.cat(x.unbind(1))).chunk(x.shape[1])], 1),
    "a new axis in front": lambda m, x: m.linear(x[None].expand(2, -1, -1, -1)).mean(0),
    "repeated": lambda m, x: m.linear(x.repeat(2, 1, 1))[: len(x)],
    "flipped": lambda m, x: m.linear(x.flip(0)).flip(0),
    "rolled": lambda m, x: m.linear(x.roll(1, 0)).roll(-1, 0),
    "one by one": one_by_one,
    "sorted": sorted_samples,
    "split": split_samples,
    "indexed": lambda m, x: torch.stack([m.linear(x[i]) for i in range(len(x))]),
    "heads": heads,
    "transposed": lambda m, x: m.linear(x.transpose(0, 1)).transpose(0, 1),
    "einsum": lambda m, x: torch.einsum("tbd->btd", m.linear(torch.einsum("btd->tbd", x))),
    "by a larger constant": lambda m, x: (x.unsqueeze(0) * torch.ones(4, 1, 1, 1) + m.bias).mean(0),
    "by a constant in front": lambda m, x: torch.stack(
        (torch.ones(x.shape[1], 1, 1) * x[:, 0] + m.bias).unbind(0), 1) + x,
    "index_select": lambda m, x: m.linear(x.index_select(0, torch.arange(len(x)).flip(0))).flip(0),
    "reshaped": lambda m, x: m.linear(x.reshape(-1, WIDTH)).view_as(x),
}  # fmt: skip


def compare(model: Restacked, ids: Tensor, batch_dim: int = 0) -> None:
    together = conserva.relevance(model, ids, 1, rules="exact", batch_dim=batch_dim)
    for i in range(ids.shape[batch_dim]):
        alone = conserva.relevance(model, ids.narrow(batch_dim, i, 1), 1, rules="exact", batch_dim=batch_dim)
        for entry in ("output", "inputs", "positions", "biases"):
            one, all_ = getattr(alone.ledger, entry)[0], getattr(together.ledger, entry)[i]
            torch.testing.assert_close(one, all_, rtol=1e-9, atol=1e-12, msg=f"{entry} of sample {i}: {one} {all_}")
        for owner, share in alone.modules.items():
            torch.testing.assert_close(share[0], together.modules[owner][i], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", RESTACKED)
@pytest.mark.parametrize(("samples", "length"), [(3, 6), (4, 4), (6, 6), (2, 6), (6, 3), (3, 4), (2, 4)])
def test_a_batch_equals_its_samples(name: str, samples: int, length: int) -> None:
    model = Restacked(RESTACKED[name]).double().eval()
    compare(model, torch.randint(0, 50, (samples, length)))


TIME_FIRST: dict[str, Callable[[Restacked, Tensor], Tensor]] = {
    "as they are": lambda m, x: m.linear(x),
    "rows": lambda m, x: m.linear(x.reshape(-1, WIDTH)).view_as(x),
    "rows and heads": lambda m, x: (m.linear(x.reshape(-1, WIDTH)).view(-1, 3, 2) + m.bias.view(3, 2)).reshape(x.shape),
    "step by step": lambda m, x: torch.stack([m.linear(one) for one in x]),
    "heads in front": lambda m, x: (
        m.linear(x).view(x.shape[0], -1, 2).transpose(0, 1) + m.bias[:2]).transpose(0, 1).reshape(x.shape),
}  # fmt: skip


@pytest.mark.parametrize("name", TIME_FIRST)
@pytest.mark.parametrize(("samples", "length"), [(3, 6), (4, 4), (6, 6), (2, 6), (6, 3), (3, 4), (2, 4)])
def test_a_batch_along_another_axis_equals_its_samples(name: str, samples: int, length: int) -> None:
    model = Restacked(TIME_FIRST[name], time_first=True).double().eval()
    compare(model, torch.randint(0, 50, (length, samples)), batch_dim=1)


class ByLength(nn.Module):
    """Reads each sample up to its own length, from a list that is not split by sample."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__()
        self.bert, self.lengths = bert().double(), lengths

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        rows = zip(inputs_embeds, self.lengths, strict=False)
        return torch.cat([self.bert(inputs_embeds=x[:length][None]).logits for x, length in rows])


@pytest.mark.parametrize("explain", [conserva.relevance, conserva.audit], ids=["relevance", "audit"])
def test_samples_that_differ_by_themselves_are_refused(explain: Any) -> None:
    x = torch.randn(3, 6, 32, dtype=torch.float64)
    says = r"Sample 1 has the output .* in the batch and .* by itself.*list of lengths"
    with pytest.raises(conserva.Error, match=says):
        explain(ByLength([6, 2, 6]), x, 1)
    alike = ByLength([6, 6, 6])
    assert torch.allclose(conserva.relevance(alike, x, 1).output, alike(x)[:, 1], atol=1e-12)


class ByLengthAndSize(ByLength):
    """Multiplies the output by a number of the sample."""

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        return super().forward(inputs_embeds) * inputs_embeds[:, 0, :1]


def test_a_large_output_does_not_hide_that_another_differs() -> None:
    x = torch.randn(3, 6, 32, dtype=torch.float64)
    x[:, 0, 0] = torch.tensor([1e6, 1.0, 1.0])
    with pytest.raises(conserva.Error, match="Sample 1 has the output"):
        conserva.relevance(ByLengthAndSize([6, 2, 6]), x, 1)
    alike = ByLengthAndSize([6, 6, 6])
    assert torch.allclose(conserva.relevance(alike, x, 1).output, alike(x)[:, 1], atol=1e-12)
