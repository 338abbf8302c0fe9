"""Logits only at the explained positions: the same result from fewer of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import conserva
from conserva.engine.inputs import Inputs
from conserva.engine.logits_to_keep import keep_explained_logits
from tiny import bert, shake, tokens


def language_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    settings = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return shake(LlamaForCausalLM(LlamaConfig(**settings, intermediate_size=48)).double())


def as_asked(model: nn.Module, inputs: Any, **targets: Any) -> tuple[Any, list[Any], list[int]]:
    """Explain; return the result, what the model was asked for, and at how many positions it gave logits."""
    asked: list[Any] = []
    given: list[int] = []

    def note_call(module: nn.Module, args: Any, kwargs: Any) -> None:
        asked.append(kwargs.get("logits_to_keep"))

    def note_output(module: nn.Module, args: Any, output: Any) -> None:
        given.append(output.logits.shape[1])

    hooks = [model.register_forward_pre_hook(note_call, with_kwargs=True), model.register_forward_hook(note_output)]
    try:
        return conserva.relevance(model, inputs, **targets), asked, given
    finally:
        for hook in hooks:
            hook.remove()


TARGETS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "one for all": ({"target": (2, 5)}, [2]),
    "from the end": ({"target": (-1, 5)}, [-1]),
    "one a sample": ({"target": [(2, 5), (0, 7), (2, 1)]}, [2, 0]),
    "the same twice": ({"target": [(6, 5), (-1, 5), (6, 1)]}, [6, -1]),
    "several": ({"targets": [(3, 1), [(1, 2), (3, 4), (-7, 98)], (3, -99)]}, [3, 1, -7]),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("rules", ["ah+ln", "exact", "attnlrp"])
def test_only_explained_positions_get_logits(name: str, rules: str) -> None:
    targets, positions = TARGETS[name]
    model = language_model()
    result, asked, given = as_asked(model, tokens(), rules=rules, **targets)
    assert [[-kept] if isinstance(kept, int) else kept.tolist() for kept in asked] == [positions]
    assert given == [len(positions)]
    plain, _, everywhere = as_asked(model, {**tokens(), "logits_to_keep": 0}, rules=rules, **targets)
    assert everywhere == [7]
    for ours, theirs in zip(*(one if isinstance(one, list) else [one] for one in (result, plain)), strict=True):
        torch.testing.assert_close(ours.output, theirs.output, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(ours.scores(), theirs.scores(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(ours.ledger.gap, theirs.ledger.gap, rtol=1e-10, atol=1e-10)
        assert ours.logits is theirs.logits is None


def test_embeddings_and_single_positional_inputs_count_too() -> None:
    model, ids = language_model(), tokens()["input_ids"]
    x = model.get_input_embeddings()(ids).detach()
    _, asked, _ = as_asked(model, {"inputs_embeds": x}, target=(2, 5))
    assert asked[0].tolist() == [2]
    _, asked, _ = as_asked(model, ids, target=(2, 5))
    assert asked[0].tolist() == [2]


class Counted(nn.Module):
    """Takes a number of logits to keep, not their positions."""

    def forward(self, input_ids: Tensor, logits_to_keep: int = 0) -> Tensor:
        return input_ids

    def get_output_embeddings(self) -> nn.Module:
        return nn.Linear(4, 99)


LEFT_ALONE: dict[str, tuple[Any, Any, list[Any]]] = {
    "a class": (bert, {}, [1]),
    "an entry of a model without positions": (bert, {}, [(1, 2)]),
    "the caller asks for all": (language_model, {"logits_to_keep": 0}, [(1, 2)]),
    "the caller asks for some": (language_model, {"logits_to_keep": 2}, [(1, 2)]),
    "a function": (language_model, {}, [lambda output: output.logits[:, 0, 0]]),
    "one that is a function": (language_model, {}, [(1, 2), lambda output: output.logits[:, 0, 0]]),
    "the highest score": (language_model, {}, [None]),
    "one index": (language_model, {}, [3]),
    "three indices": (language_model, {}, [(1, 2, 3)]),
    "a position too far": (language_model, {}, [(7, 2)]),
    "a position too far from the end": (language_model, {}, [(-8, 2)]),
    "a token too far": (language_model, {}, [(1, 99)]),
    "truth for a position": (language_model, {}, [(True, 2)]),
    "too few for the samples": (language_model, {}, [[(1, 2), (1, 3)]]),
    "one sample's is none": (language_model, {}, [[(1, 2), None, (1, 3)]]),
    "an empty list": (language_model, {}, [[]]),
    "a loss to compute": (language_model, {"labels": torch.zeros(3, 7, dtype=torch.long)}, [(1, 2)]),
    "a model that keeps the last few": (Counted, {}, [(1, 2)]),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_everything_else_is_left_alone(name: str) -> None:
    make, further, targets = LEFT_ALONE[name]
    model = make()
    call = Inputs.of(model, {**tokens(), **further})
    assert keep_explained_logits(model, call, targets) == (call, targets)


def test_samples_along_another_axis_are_left_alone() -> None:
    model = language_model()
    call = Inputs.of(model, tokens(7, 7), batch_dim=1)
    assert keep_explained_logits(model, call, [(1, 2)]) == (call, [(1, 2)])


def test_several_positional_arguments_are_left_alone() -> None:
    model, given = language_model(), tokens()
    call = Inputs.of(model, tuple(given.values()))
    assert keep_explained_logits(model, call, [(1, 2)]) == (call, [(1, 2)])


@pytest.mark.parametrize("target", [(7, 2), (1, 99), (1, 2, 3)])
def test_an_error_repeats_the_target_as_it_was_given(target: tuple[int, ...]) -> None:
    with pytest.raises(conserva.Error) as raised:
        conserva.relevance(language_model(), tokens(), target)
    assert f"target={target!r}" in str(raised.value)
    assert "(7, 99)" in str(raised.value)


def test_a_relevance_that_is_not_finite_is_still_found() -> None:
    model = language_model()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.fill_(math.inf)
    with pytest.raises(conserva.Error, match=r"layers\.1\.mlp"):
        conserva.relevance(model, tokens(), (1, 2))


class Translates(nn.Module):
    """Takes tokens of two lengths, and scores followers of the decoder's."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 30)

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def forward(
        self, input_ids: Tensor, decoder_input_ids: Tensor | None = None, logits_to_keep: int | Tensor = 0
    ) -> Tensor:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("position", "moved"), [(3, True), (-4, True), (4, False), (-5, False), (8, False), (-9, False)]
)
def test_positions_of_a_decoder_are_counted_by_its_own_tokens(position: int, moved: bool) -> None:
    model = Translates()
    call = Inputs.of(model, {"input_ids": torch.ones(1, 9).long(), "decoder_input_ids": torch.ones(1, 4).long()})
    assert ("logits_to_keep" in keep_explained_logits(model, call, [(position, 5)])[0].kwargs) == moved


def test_a_decoder_whose_tokens_are_not_given_is_left_alone() -> None:
    model = Translates()
    call = Inputs.of(model, {"input_ids": torch.ones(1, 9).long()})
    assert keep_explained_logits(model, call, [(0, 5)]) == (call, [(0, 5)])
