"""Every look-up of an input's ids is a leaf of that input, however the ids got there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from tiny import HandWritten, shake

CLOSE = {"rtol": 1e-9, "atol": 1e-12}


class Body(nn.Module):
    """A table, attention and a linear layer; how ids become rows is to be tried."""

    def __init__(self, look_up: Callable[..., Tensor], words: int = 40, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(64, width))
        self.inner, self.out = nn.Linear(width, width), nn.Linear(width, 3)
        self.look_up = look_up

    def read(self, x: Tensor) -> Tensor:
        x = x.flatten(1, -2) if x.dim() > 3 else x
        x = x + self.places[: x.shape[1]]
        x = x + F.scaled_dot_product_attention(x, x, x)
        return self.out((x * torch.tanh(self.inner(x))).mean(1))

    def forward(self, ids: Tensor) -> Tensor:
        return self.read(self.look_up(self, ids))


def by_hand(model: Body, ids: Tensor, look_up: Callable[[Body, Tensor, Tensor], Tensor]) -> Tensor:
    """Gradient x Input of a table that has a row of its own for each element of the input, the plain way."""
    rows = model.words.weight.detach()[ids.reshape(-1)].clone().requires_grad_()
    own = torch.arange(ids.numel()).view(ids.shape)
    (grad,) = torch.autograd.grad(model.read(look_up(model, own, rows))[:, 1].sum(), rows)
    return (rows * grad).sum(-1).detach().view(ids.shape)


def shifted(ids: Tensor) -> Tensor:
    out = ids.new_zeros(ids.shape)
    out[:, 1:] = ids[:, :-1].clone()
    out[:, 0] = 3
    return out


def shifted_in_parts(ids: Tensor) -> Tensor:
    out = torch.zeros(ids.shape, dtype=torch.long)
    out[:, 1:].copy_(ids[:, :-1])
    return out


def marked(ids: Tensor) -> Tensor:
    out = torch.full((len(ids), ids.shape[1] + 2), 5)
    out[:, 1:-1] = ids
    return out


def repeated(ids: Tensor) -> Tensor:
    return ids.repeat_interleave(2, dim=1)


def scattered(ids: Tensor) -> Tensor:
    order = torch.arange(ids.shape[1]).flip(0).expand_as(ids)
    return torch.zeros_like(ids).scatter(1, order, ids)


def in_place(ids: Tensor) -> Tensor:
    out = ids.clone()
    out.masked_fill_(torch.arange(ids.shape[1]) == 1, 4)
    out[:, 2] += 0
    return out


MOVED: dict[str, Callable[[Tensor], Tensor]] = {
    "as they are": lambda ids: ids,
    "copied": lambda ids: ids.clone(),
    "shifted": shifted,
    "shifted into a view": shifted_in_parts,
    "shifted by cat": lambda ids: torch.cat([torch.full((len(ids), 1), 3), ids[:, :-1]], 1),
    "shifted by pad": lambda ids: F.pad(ids, (1, 0), value=3)[:, :-1],
    "shifted by roll": lambda ids: ids.roll(1, 1),
    "between marks": marked,
    "padded": lambda ids: F.pad(ids, (0, 3), value=1),
    "padded by a keyword": lambda ids: F.pad(input=ids, pad=(2, 1), value=1),
    "flipped": lambda ids: ids.flip(1),
    "repeated": repeated,
    "tiled": lambda ids: ids.repeat(1, 3),
    "expanded": lambda ids: ids[:, None].expand(-1, 2, -1).reshape(len(ids), -1),
    "picked": lambda ids: ids[:, [0, 2, 2]],
    "picked by gather": lambda ids: ids.gather(1, torch.tensor([[1, 1, 0]] * len(ids))),
    "picked by a mask": lambda ids: ids[torch.ones_like(ids).bool()].view_as(ids),
    "scattered": scattered,
    "stacked": lambda ids: torch.stack([ids, ids.flip(1)], 1).flatten(1),
    "unbound": lambda ids: torch.stack(ids.unbind(1)[::-1], 1),
    "in chunks": lambda ids: torch.cat(ids.chunk(2, 1)[::-1], 1),
    "split": lambda ids: torch.cat([part + 0 for part in ids.split(1, 1)], 1),
    "there and back": lambda ids: ids.T.contiguous().T,
    "as int32": lambda ids: ids.int().flip(1),
    "filled": lambda ids: ids.masked_fill(torch.arange(ids.shape[1]) == 1, 4),
    "filled in place": in_place,
    "chosen": lambda ids: torch.where(torch.arange(ids.shape[1]) > 1, ids, 7),
    "chosen by a method": lambda ids: ids.where(torch.arange(ids.shape[1]) > 1, torch.zeros_like(ids)),
    "with a new axis": lambda ids: ids.unsqueeze(-1).squeeze(-1).view(len(ids), 1, -1),
}


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("rules", ["gi", "exact"])
def test_moved_ids_lend_relevance_to_the_element_they_came_from(name: str, rules: str) -> None:
    move = MOVED[name]
    model = Body(lambda m, ids: m.words(move(ids))).double().eval()
    ids = torch.randint(8, 40, (3, 6))
    before = ids.clone()
    plain = model(ids)
    result = conserva.relevance(model, ids, 1, rules=rules)
    assert torch.equal(result.output, plain[:, 1])
    assert type(ids) is Tensor
    assert torch.equal(ids, before)
    assert result.scores().shape == ids.shape
    torch.testing.assert_close(result.scores().sum(1), result.ledger.inputs, **CLOSE)
    if rules == "exact":
        assert result.ledger.gap.abs().max() < 1e-10
        return

    def rows_of_their_own(m: Body, own: Tensor, rows: Tensor) -> Tensor:
        """Constants, which stand below 8 among the moved ids, are looked up in the words' own table."""
        moved, constant = move(own + 8), move(torch.full_like(own, -1))
        return torch.where((constant < 0)[..., None], rows[(moved - 8).clamp(0)], m.words.weight[constant.clamp(0)])

    torch.testing.assert_close(result.scores(), by_hand(model, ids, rows_of_their_own), **CLOSE)


def bagged(m: Body, ids: Tensor) -> Tensor:
    return F.embedding_bag(ids.reshape(-1, 2), m.words.weight, mode="sum").view(len(ids), -1, 8)


LOOK_UPS: dict[str, tuple[Callable[[Body, Tensor], Tensor], Callable[[Body, Tensor, Tensor], Tensor]]] = {
    "a module": (lambda m, ids: m.words(ids), lambda m, own, rows: rows[own]),
    "functional": (lambda m, ids: F.embedding(ids, m.words.weight), lambda m, own, rows: rows[own]),
    "by keywords": (lambda m, ids: F.embedding(input=ids, weight=m.words.weight), lambda m, own, rows: rows[own]),
    "torch's own": (lambda m, ids: torch.embedding(m.words.weight, ids), lambda m, own, rows: rows[own]),
    "an index": (lambda m, ids: m.words.weight[ids], lambda m, own, rows: rows[own]),
    "an index and a slice": (lambda m, ids: m.words.weight[ids, :], lambda m, own, rows: rows[own]),
    "behind an axis": (lambda m, ids: m.words.weight.T[:, ids].permute(1, 2, 0), lambda m, own, rows: rows[own]),
    "behind a new axis": (lambda m, ids: m.words.weight[None, ids][0], lambda m, own, rows: rows[own]),
    "behind an ellipsis": (
        lambda m, ids: m.words.weight.T[..., ids].permute(1, 2, 0), lambda m, own, rows: rows[own]),
    "index_select": (
        lambda m, ids: m.words.weight.index_select(0, ids.view(-1)).view(*ids.shape, -1),
        lambda m, own, rows: rows[own]),
    "index_select of columns": (
        lambda m, ids: torch.index_select(m.words.weight.T, 1, ids.flatten()).T.unflatten(0, ids.shape),
        lambda m, own, rows: rows[own]),
    "gather": (
        lambda m, ids: m.words.weight.gather(0, ids.reshape(-1, 1).expand(-1, 8)).view(*ids.shape, 8),
        lambda m, own, rows: rows[own]),
    "take": (
        lambda m, ids: m.words.weight.take(ids[..., None] * 8 + torch.arange(8)), lambda m, own, rows: rows[own]),
    "take_along_dim": (
        lambda m, ids: torch.take_along_dim(m.words.weight, ids.view(-1, 1), 0).view(*ids.shape, 8),
        lambda m, own, rows: rows[own]),
    "embedding_bag": (bagged, lambda m, own, rows: rows[own].unflatten(1, (-1, 2)).sum(2)),
    "one-hot vectors": (
        lambda m, ids: F.one_hot(ids, 40).double() @ m.words.weight, lambda m, own, rows: rows[own]),
    "one-hot vectors in a linear layer": (
        lambda m, ids: F.linear(F.one_hot(ids, 40).to(m.places.dtype), m.words.weight.T),
        lambda m, own, rows: rows[own]),
    "rows and then a norm of the table": (
        lambda m, ids: F.embedding(ids, F.normalize(m.words.weight) * 2),
        lambda m, own, rows: (F.normalize(m.words.weight) * 2).detach()[own] + 0 * rows[own]),
    "shifted by a number": (lambda m, ids: m.words(ids - 1 + 1), lambda m, own, rows: rows[own]),
    "by another numbering": (
        lambda m, ids: m.words(torch.arange(40).flip(0)[39 - ids]), lambda m, own, rows: rows[own]),
    "twice": (lambda m, ids: m.words(ids) + m.words(shifted(ids)), lambda m, own, rows: _twice(m, own, rows)),
}  # fmt: skip


def _twice(m: Body, own: Tensor, rows: Tensor) -> Tensor:
    start = m.words.weight[3].expand(len(own), 1, -1)
    return rows[own] + torch.cat([start, rows[own[:, :-1]]], 1)


@pytest.mark.parametrize("name", LOOK_UPS)
def test_every_call_that_looks_ids_up_is_seen(name: str) -> None:
    look_up, plain = LOOK_UPS[name]
    model = Body(look_up).double().eval()
    ids = torch.randint(8, 40, (2, 6))
    result = conserva.relevance(model, ids, 1, rules="gi")
    torch.testing.assert_close(result.output, model(ids)[:, 1], **CLOSE)
    assert result.scores().shape == ids.shape
    if name != "rows and then a norm of the table":
        torch.testing.assert_close(result.scores(), by_hand(model, ids, plain), **CLOSE)
    assert conserva.relevance(model, ids, 1, rules="exact").ledger.gap.abs().max() < 1e-10


CHANGED: dict[str, Callable[[Body, Tensor], Tensor]] = {
    "sorted": lambda m, ids: m.words(ids.sort(1).values),
    "summed up": lambda m, ids: m.words(ids.cumsum(1) % 40),
    "pairs of ids": lambda m, ids: m.words((ids + 3 * ids.roll(1, 1)) % 40),
    "the highest": lambda m, ids: m.words(ids.max(1, keepdim=True).values),
    "changed in place": lambda m, ids: m.words(ids.clone().cumsum_(1).remainder_(40)),
    "one-hot vectors, smoothed": lambda m, ids: (F.one_hot(ids, 40).double() * 0.9 + 0.1) @ m.words.weight,
}


@pytest.mark.parametrize("name", CHANGED)
def test_ids_that_are_no_longer_known_are_refused_in_words(name: str) -> None:
    model = Body(CHANGED[name]).double().eval()
    with pytest.raises(conserva.Error, match=r"ids.*at='\.\.\.'"):
        conserva.relevance(model, torch.randint(8, 40, (2, 6)), 1)


UNSEEN: dict[str, Callable[[Body, Tensor], Tensor]] = {
    "as a list": lambda m, ids: m.words(torch.tensor(ids.tolist())),
    "by numpy": lambda m, ids: m.words(torch.from_numpy(ids.numpy().copy())),
    "its own prompt alone": lambda m, ids: m.words(torch.full_like(ids, 7)),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_an_input_that_no_look_up_used_is_refused(name: str) -> None:
    model = Body(UNSEEN[name]).double().eval()
    with pytest.raises(conserva.Error, match="never looked it up"):
        conserva.relevance(model, torch.randint(8, 40, (2, 6)), 1)


def prompted(model: Body, ids: Tensor, length: int) -> Tensor:
    return torch.cat([model.words(torch.full((len(ids), length), 7)), model.words(ids)], 1)


class Named(Body):
    """A model that says which of its tables is the words', as Hugging Face's do."""

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids)


@pytest.mark.parametrize("length", [1, 4, 6, 9])
@pytest.mark.parametrize("make", [Body, Named])
def test_a_prompt_of_the_model_s_own_is_a_constant(make: type[Body], length: int) -> None:
    model = make(lambda m, ids: prompted(m, ids, length)).double().eval()
    ids = torch.randint(8, 40, (3, 6))
    result = conserva.relevance(model, ids, 1, rules="gi")
    expected = by_hand(model, ids, lambda m, own, rows: torch.cat([m.words(torch.full((3, length), 7)), rows[own]], 1))
    torch.testing.assert_close(result.scores(), expected, **CLOSE)
    result = conserva.relevance(model, ids, 1, rules="exact")
    assert result.ledger.gap.abs().max() < 1e-10
    assert result.modules["words"].abs().min() > 0


def test_constants_among_looked_up_ids_are_booked_on_the_table() -> None:
    model = Body(lambda m, ids: m.words(marked(ids))).double().eval()
    ids = torch.randint(8, 40, (3, 6))
    result = conserva.relevance(model, ids, 1, rules="exact")
    again = Body(lambda m, ids: torch.cat([m.fixed(ids[:, :1]), m.words(ids), m.fixed(ids[:, :1])], 1)).double().eval()
    again.load_state_dict(model.state_dict())
    again.fixed = lambda one: again.words.weight[5].detach().expand(*one.shape, -1)
    expected = conserva.relevance(again, ids, 1, rules="exact").ledger
    torch.testing.assert_close(result.ledger.inputs, expected.inputs, **CLOSE)
    torch.testing.assert_close(result.ledger.positions, expected.positions, **CLOSE)
    assert result.modules["words"].abs().min() > 0


class Keeps(HandWritten):
    """A model that keeps ids, and returns them."""

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        self.kept = ids[:, 1:]
        self.last = torch.zeros_like(ids)
        self.last[:] = ids
        return super().forward(ids), ids.flip(1)


def chosen_by_word(m: Body, ids: Tensor) -> Tensor:
    """Experts by word, as hashes choose them, with weights that depend on the context and are frozen."""
    x = m.words(ids)
    weights = torch.softmax(m.inner(x), -1)
    expert = torch.arange(40)[ids] % 8
    return x * weights.gather(-1, expert[..., None])


def test_what_the_model_computed_is_no_table() -> None:
    model = Body(chosen_by_word).double().eval()
    result = conserva.relevance(model, torch.randint(8, 40, (2, 6)), 1, rules="exact")
    assert list(result.values) == ["ids"]
    assert result.ledger.gap.abs().max() < 1e-10


def test_nothing_of_the_tracking_stays_behind() -> None:
    model, ids = shake(Keeps()), torch.randint(0, 50, (2, 5))
    seen: list[Any] = []
    result = conserva.relevance(model, ids, lambda output: seen.append(output[1]) or output[0][:, 1])
    for x in (ids, model.kept, model.last, *seen):
        assert type(x) is Tensor
        assert not [name for name in vars(x) if name.startswith("conserva")]
    assert torch.equal(model.last, ids)
    assert torch.equal(seen[0], ids.flip(1))
    assert type(result.scores()) is Tensor


def test_two_inputs_in_one_sequence_are_told_apart() -> None:
    class Pair(Body):
        def forward(self, question: Tensor, answer: Tensor) -> Tensor:
            middle = torch.full((len(question), 1), 2)
            return super().forward(torch.cat([question, middle, answer], 1))

    model = Pair(lambda m, ids: m.words(ids)).double().eval()
    question, answer = torch.randint(8, 40, (2, 3)), torch.randint(8, 40, (2, 4))
    result = conserva.relevance(model, (question, answer), 1, rules="exact")
    assert set(result.values) == {"question", "answer"}
    whole = torch.cat([question, torch.full((2, 1), 2), answer], 1)
    plain = conserva.relevance(Body(lambda m, ids: m.words(ids)).double().eval(), whole, 1, rules="exact")
    torch.testing.assert_close(result.scores("question"), plain.scores()[:, :3], **CLOSE)
    torch.testing.assert_close(result.scores("answer"), plain.scores()[:, 4:], **CLOSE)
    torch.testing.assert_close(result.ledger.positions - plain.ledger.positions, plain.scores()[:, 3], **CLOSE)
