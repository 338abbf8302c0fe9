"""Rule sets averaged along a path: against a loop of single gradients, and against Integrated Gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import conserva
from conserva.attribution.registry import find
from conserva.engine.rules import RULE_SETS
from tiny import bert, tokens


def padded() -> dict[str, Tensor]:
    inputs = tokens(3, 6)
    for row, length in enumerate((6, 4, 5)):
        inputs["attention_mask"][row, length:] = 0
        inputs["input_ids"][row, length:] = 0
    return inputs


def by_hand(model: nn.Module, inputs: dict[str, Tensor], start: Tensor, rules: str, steps: int) -> Tensor:
    """(x - start) times the weighted mean of the gradient at the points of a Gauss-Legendre rule."""
    x = model.get_input_embeddings()(inputs["input_ids"]).detach()  # type: ignore[operator]
    total = torch.zeros_like(x)
    for place, weight in zip(*np.polynomial.legendre.leggauss(steps), strict=True):
        point = (start + (place + 1) / 2 * (x - start)).requires_grad_()
        with conserva.rules(rules):
            logits = model(inputs_embeds=point, attention_mask=inputs["attention_mask"]).logits
        total += weight / 2 * torch.autograd.grad(logits[:, 2].sum(), point)[0]
    return ((x - start) * total).sum(-1)


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize("rules", RULE_SETS)
def test_a_path_is_a_mean_of_gradients_under_the_rules(rules: str, steps: int) -> None:
    model, inputs = bert().double(), padded()
    table = model.get_input_embeddings().weight.detach()
    starts = {"zero": torch.zeros(()).double(), "mean": table.mean(0), "7": table[7]}
    for baseline, start in starts.items():
        found = find(f"path:rules={rules}:steps={steps}:baseline={baseline}").apply(model, inputs, 2)
        expected = by_hand(model, inputs, start, rules, steps)
        torch.testing.assert_close(found.scores["input_ids"], expected, rtol=1e-9, atol=1e-9)
        assert found.ledger is not None
        torch.testing.assert_close(found.ledger.inputs, expected.sum(1))
        assert (found.scores["input_ids"][inputs["attention_mask"] == 0] == 0).all()


def test_the_path_of_gi_is_integrated_gradients() -> None:
    model, inputs = bert().double(), padded()
    a = find("path:rules=gi:steps=9:baseline=zero").apply(model, inputs, None)
    b = find("ig:steps=9").apply(model, inputs, None)
    assert torch.equal(a.scores["input_ids"], b.scores["input_ids"])
    assert all(map(torch.equal, vars(a.ledger).values(), vars(b.ledger).values()))


@pytest.mark.parametrize("name", ["mask", "pad"])
def test_a_baseline_can_be_named_by_its_token(name: str) -> None:
    task = conserva.load()
    number = task.special_ids[name]
    named = conserva.explain(task, "a joy.", method=f"path:baseline={name}")
    assert named.scores == conserva.explain(task, "a joy.", method=f"path:baseline={number}").scores
    assert named.method == f"path:baseline={name}"
    many = conserva.explain(task, ["a joy.", "a bore."], method=f"path:baseline={name}")
    assert many[0].scores == pytest.approx(named.scores, rel=1e-4, abs=1e-5)
    with pytest.raises(conserva.Error, match=f"baseline='{name}' needs a tokenizer"):
        find(f"path:baseline={name}").apply(bert(), tokens(), 0)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("path:rules=best", "rules=best is not one of gi,"),
        ("path:baseline=none", "baseline=none is not one of mean, zero, mask, pad or a whole number"),
        ("path:baseline=-1", "baseline=-1 is not one of"),
        ("path:steps=0", "steps=0 is too small: a path needs"),
        ("path:steps=x", "steps=x is not a whole number"),
        ("path:baseline=99", "baseline=99 is not a token id"),
    ],
)
def test_options_that_mean_nothing_are_refused(method: str, message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        find(method).apply(bert(), tokens(), 0)


def test_pixels_start_from_zero() -> None:
    task = conserva.load("digits")
    image = torch.rand(1, 28, 28).numpy()[0]
    scores = [conserva.explain(task, image, method=f"path:baseline={name}").scores for name in ("mean", "zero")]
    assert scores[0] == scores[1]
