"""Which arguments of a call are explained: those without a name, those by name, and in which batch."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from tiny import Translator, bert, shake, tokens

CLOSE = {"rtol": 1e-9, "atol": 1e-12}


class Pair(nn.Module):
    """Two sequences, the second of which attends to the first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.others = nn.Embedding(40, 8), nn.Embedding(40, 8)
        self.inner, self.out = nn.Linear(8, 8), nn.Linear(8, 3)

    def mix(self, a: Tensor, b: Tensor) -> Tensor:
        a = self.inner(a)
        return self.out(torch.tanh(b + F.scaled_dot_product_attention(b, a, a)).mean(1))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.mix(self.words(src), self.others(tgt))


class OneTable(Pair):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.mix(self.words(a), self.words(b))


class AnyNumber(Pair):
    def forward(self, *both: Tensor) -> Tensor:
        return self.mix(self.words(both[0]), self.others(both[1]))


class Numbers(Pair):
    def forward(self, ids: Tensor, picture: Tensor) -> Tensor:
        return self.mix(self.words(ids), picture)


class Segmented(Pair):
    """Segments are looked up too, and are not words."""

    def forward(self, ids: Tensor, token_type_ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = self.words(ids) + self.others(token_type_ids)
        return self.mix(x, x) * (1.0 if lengths is None else lengths[:, None])


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(seed))


def gradient_at(model: Pair, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient x Input of both sequences, as rows."""
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    grads = torch.autograd.grad(model.mix(a, b)[:, 1].sum(), (a, b))
    return tuple((x * grad).sum(-1).detach() for x, grad in zip((a, b), grads, strict=True))


POSITIONAL: dict[str, tuple[type[Pair], Any, tuple[str, str]]] = {
    "two tables": (Pair, (some(3, 4), some(3, 5, seed=1)), ("src", "tgt")),
    "one table": (OneTable, (some(3, 4), some(3, 5, seed=1)), ("a", "b")),
    "the same ids twice": (OneTable, (some(3, 4), some(3, 4)), ("a", "b")),
    "without names": (AnyNumber, (some(3, 4), some(3, 5, seed=1)), ("both", "0")),
    "numbers": (Numbers, (some(3, 4), torch.ones(3, 5, 8).double()), ("ids", "picture")),
    "by name": (Pair, {"tgt": some(3, 5, seed=1), "src": some(3, 4)}, ("src", "tgt")),
}


@pytest.mark.parametrize("name", POSITIONAL)
def test_all_arguments_are_inputs(name: str) -> None:
    make, given, (first, second) = POSITIONAL[name]
    model = make().double().eval()
    result = conserva.relevance(model, given, 1, rules="gi")
    assert set(result.inputs) == {first, second}
    a, b = (given["src"], given["tgt"]) if isinstance(given, dict) else given
    rows = b if b.is_floating_point() else (model.words if make is OneTable else model.others)(b)
    for score, expected in zip(
        (result.scores(first), result.scores(second)), gradient_at(model, model.words(a), rows), strict=True
    ):
        torch.testing.assert_close(score, expected, **CLOSE)
    exact = conserva.relevance(model, given, 1, rules="exact").ledger
    assert exact.positions.abs().max() == 0
    for i in range(3):
        one = {k: v[i : i + 1] for k, v in given.items()} if isinstance(given, dict) else (a[i : i + 1], b[i : i + 1])
        alone = conserva.relevance(model, one, 1, rules="exact")
        torch.testing.assert_close(alone.ledger.inputs[0], exact.inputs[i], **CLOSE)
        torch.testing.assert_close(alone.ledger.biases[0], exact.biases[i], **CLOSE)


def test_what_is_called_otherwise_is_no_input() -> None:
    model = Segmented().double().eval()
    ids, segments = some(2, 4), torch.tensor([[0, 0, 1, 1]] * 2)
    for given in ((ids, segments), {"ids": ids, "token_type_ids": segments}, (ids, segments, torch.tensor([4, 4]))):
        result = conserva.relevance(model, given, 1, rules="exact")
        assert set(result.inputs) == {"ids"}
        assert result.modules["others"].abs().max() > 0


class Flagged(Pair):
    def forward(self, ids: Tensor, flag: Tensor) -> Tensor:
        x = self.words(ids)
        return self.mix(x, x) * flag[:, None]


def test_integers_that_are_not_looked_up_are_no_input() -> None:
    model, ids, flag = Flagged().double().eval(), some(2, 4), torch.tensor([1, 2])
    for given in ((ids, flag), {"ids": ids, "flag": flag}):
        assert set(conserva.relevance(model, given, 1, rules="exact").inputs) == {"ids"}


def test_hugging_face_models_called_without_names() -> None:
    model, given = bert(), tokens()
    by_name = conserva.relevance(model, given, 1)
    without = conserva.relevance(model, (given["input_ids"], given["attention_mask"], torch.zeros(3, 7).long()), 1)
    assert set(without.values) == {"input_ids"}
    torch.testing.assert_close(by_name.scores(), without.scores())


def test_a_forward_that_was_replaced_on_the_instance_keeps_the_names_of_its_arguments() -> None:
    model, given = bert(), tokens()
    expected = conserva.relevance(model, given, 1).scores()
    original = type(model).forward
    replaced = functools.wraps(original)(lambda *args, **kwargs: original(model, *args, **kwargs))
    assert "self" in inspect.signature(replaced).parameters
    model.forward = replaced
    result = conserva.relevance(model, (given["input_ids"], given["attention_mask"]), 1)
    assert set(result.values) == {"input_ids"}
    torch.testing.assert_close(result.scores(), expected)


def test_both_sequences_of_a_translator_without_names() -> None:
    model = shake(Translator().double())
    source, target = some(2, 5), some(2, 3, seed=1)
    result = conserva.relevance(model, (source, target), 7, rules="exact")
    named = conserva.relevance(model, {"input_ids": source, "decoder_input_ids": target}, 7, rules="exact")
    assert set(result.values) == {"input_ids", "decoder_input_ids"}
    for name in result.values:
        torch.testing.assert_close(result.scores(name), named.scores(name), **CLOSE)


class Shuffling(Pair):
    """Rows in an order of their own, so that samples are explained one at a time."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        a, b = self.words(src), self.others(tgt)
        rows = a.reshape(-1, 8)
        order = rows.detach()[:, 0].argsort()
        return self.mix(torch.zeros_like(rows).index_add(0, order, self.inner(rows[order])).view_as(a), b)


def test_samples_of_several_arguments_one_at_a_time() -> None:
    model = Shuffling().double().eval()
    source, target = some(3, 4), some(3, 5, seed=1)
    result = conserva.relevance(model, (source, target), 1, rules="exact")
    assert result.scores("src").shape == (3, 4)
    assert result.scores("tgt").shape == (3, 5)
    assert result.ledger.gap.abs().max() < 1e-10
    for i in range(3):
        alone = conserva.relevance(model, (source[i : i + 1], target[i : i + 1]), 1, rules="exact")
        torch.testing.assert_close(alone.scores("tgt")[0], result.scores("tgt")[i], **CLOSE)


def test_a_call_with_nothing_to_explain_is_refused() -> None:
    with pytest.raises(conserva.Error, match="none of which can be explained"):
        conserva.relevance(bert(), {"attention_mask": torch.ones(1, 4).long()}, 1)
