"""Integrated Gradients and Gradient x Input against captum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("captum", reason="captum is not installed")

from captum.attr import InputXGradient, IntegratedGradients

import conserva
from conserva.attribution.registry import find
from tiny import bert, llama, tokens


def padded() -> dict[str, Tensor]:
    inputs = tokens(3, 6)
    for row, length in enumerate((6, 4, 5)):
        inputs["attention_mask"][row, length:] = 0
        inputs["input_ids"][row, length:] = 0
    return inputs


def peer(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[object, Tensor]:
    """Return the model as a function of its embeddings, and the embeddings."""

    def logits(x: Tensor, mask: Tensor) -> Tensor:
        return model(inputs_embeds=x, attention_mask=mask).logits

    return logits, model.get_input_embeddings()(inputs["input_ids"]).detach()


@pytest.mark.parametrize("steps", [5, 50])
@pytest.mark.parametrize("build", [bert, llama], ids=["bert", "llama"])
def test_ig_equals_captum(build, steps: int) -> None:
    model, inputs = build().double(), padded()
    if build is llama:
        inputs = tokens(3, 6)  # with embeddings alone it cannot tell where the pads begin
    logits, x = peer(model, inputs)
    expected, gap = IntegratedGradients(logits).attribute(
        x, torch.zeros_like(x), target=torch.tensor([0, 1, 1]), n_steps=steps, return_convergence_delta=True,
        additional_forward_args=inputs["attention_mask"],
    )  # fmt: skip
    found = find(f"ig:steps={steps}").apply(model, inputs, [0, 1, 1])
    torch.testing.assert_close(found.scores["input_ids"], expected.sum(-1))
    torch.testing.assert_close(found.ledger.gap, -gap)


def test_ig_from_a_token() -> None:
    model, inputs = bert().double(), padded()
    logits, x = peer(model, inputs)
    start = model.get_input_embeddings()(torch.full_like(inputs["input_ids"], 7)).detach()
    expected = IntegratedGradients(logits).attribute(
        x, start, target=2, n_steps=20, additional_forward_args=inputs["attention_mask"]
    )
    found = find("ig:steps=20:baseline=7").apply(model, inputs, 2)
    torch.testing.assert_close(found.scores["input_ids"], expected.sum(-1))
    said = model(input_ids=torch.full_like(inputs["input_ids"], 7), attention_mask=inputs["attention_mask"])
    torch.testing.assert_close(found.ledger.biases, said.logits[:, 2].detach())
    with pytest.raises(conserva.Error, match="baseline=99 is not a token id: the model has 99 tokens"):
        find("ig:baseline=99").apply(model, inputs, 2)


def test_completeness_comes_with_steps() -> None:
    model, inputs = bert().double(), padded()
    gaps = [find(f"ig:steps={n}").apply(model, inputs, 0).ledger.gap.abs().max() for n in (3, 12, 200)]
    assert gaps[0] > 10 * gaps[1] > 100 * gaps[2]
    assert gaps[2] < 1e-8


def test_the_class_stays_the_same_along_the_path() -> None:
    model, inputs = bert().double(), padded()
    classes = model(**inputs).logits.argmax(-1)
    unnamed, named = find("ig").apply(model, inputs, None), find("ig").apply(model, inputs, classes.tolist())
    torch.testing.assert_close(unnamed.scores["input_ids"], named.scores["input_ids"])


@pytest.mark.parametrize("steps", ["0", "-3"])
def test_a_path_needs_a_step(steps: str) -> None:
    with pytest.raises(conserva.Error, match=f"steps={steps}"):
        find(f"ig:steps={steps}").apply(bert(), tokens(), 0)


def test_gi_equals_captum() -> None:
    model, inputs = bert().double(), padded()
    logits, x = peer(model, inputs)
    expected = InputXGradient(logits).attribute(x, 2, additional_forward_args=inputs["attention_mask"])
    torch.testing.assert_close(find("gi").apply(model, inputs, 2).scores["input_ids"], expected.sum(-1))
