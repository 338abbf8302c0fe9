"""The engine broken on purpose, in one place at a time: the check of the graph or the second opinion must see it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BartConfig, BartForSequenceClassification

import conserva
from conserva.auditing.second_opinion import verify
from conserva.engine import passes, sources
from conserva.engine.context import Propagation
from conserva.engine.inputs import Inputs
from conserva.engine.operations import activations, elementwise, gated, linear, norms, patterns, value_only
from conserva.engine.operations import tensors as live
from tiny import Translator, bert, llama, shake, tokens

Break = Callable[[pytest.MonkeyPatch], None]


class Everything(nn.Module):
    """Attention and norms of many kinds, activations in one call and in several, gates, convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.qkv, self.mix, self.up, self.down = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 8)
        self.layer, self.group, self.batch = nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.BatchNorm1d(8)
        self.rms, self.conv, self.out = nn.RMSNorm(8), nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        q, k, v = self.qkv(self.layer(x)).chunk(3, -1)
        x = x + self.mix(torch.softmax(q @ k.mT / 3, -1) @ v)
        x = x + self.conv(self.group(x.mT)).mT + self.batch(x.mT).mT
        gate, up = self.up(self.rms(x)).chunk(2, -1)
        x = x + self.down(F.silu(gate) * up)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        x = x / (x.var(-1, keepdim=True) + 1e-6).sqrt()
        h = self.mix(x)
        h = 0.5 * h * (1 + torch.erf(h / 2**0.5))
        y = h.clone()
        y[:, 1:] = h[:, :-1]
        y.tanh_()
        return self.out((x + h + y + F.relu(h) ** 2).mean(1))


class Bilinear(Everything):
    """With a product of two embeddings at its end."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        return (self.mix(x).mean(1, keepdim=True) @ self.down(x).mT)[:, 0, :3]


class Squared(Everything):
    """With squares for an activation."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.out(self.mix(x + F.scaled_dot_product_attention(x, x, x)).pow(2).mean(1))


def bart() -> nn.Module:
    config = BartConfig(
        vocab_size=60, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32, num_labels=3,
    )  # fmt: skip
    return BartForSequenceClassification(config)


def spoiled(factor: float, *positions: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what multiplies some results of a function by a factor."""

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def broken(*args: Any, **kwargs: Any) -> Any:
            found = function(*args, **kwargs)
            if isinstance(found, Tensor):
                return found * factor
            return tuple(x * factor if i in positions and x is not None else x for i, x in enumerate(found))

        return broken

    return around


def backward_of(function: type, factor: float = 1.2) -> Break:
    """A backward pass that gives too much."""
    return lambda patch: patch.setattr(
        function, "backward", staticmethod(spoiled(factor, 0)(function.backward)), raising=True
    )


def in_table(*names: str, reader: Callable[..., Any]) -> Break:
    """Another reader for some calls."""

    def broken(patch: pytest.MonkeyPatch) -> None:
        from conserva.engine.operations.readers import READERS

        for name in names:
            patch.setitem(READERS, name, reader)

    return broken


def as_it_stands(context: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def without_mean(patch: pytest.MonkeyPatch) -> None:
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale, weight = ctx.saved_tensors
        of_bias = grads[0].flatten(0, -2).sum(0) if ctx.needs_input_grad[3] else None
        return grads[0] * (scale if weight is None else scale * weight), None, None, of_bias, None

    patch.setattr(norms.FrozenLayerNorm, "backward", staticmethod(backward))


def values_frozen(patch: pytest.MonkeyPatch) -> None:
    plain = linear.READERS["matmul"]

    def reader(context: Any, function: Callable[..., Any], a: Any, b: Any, **kwargs: Any) -> Any:
        b = b.detach() if not live.live(a) and live.live(b) and b.dim() > 2 else b
        return plain(context, function, a, b, **kwargs)

    in_table("matmul", "__matmul__", reader=reader)(patch)


def shares(size: float) -> Break:
    def broken(patch: pytest.MonkeyPatch) -> None:
        share = Propagation.share
        patch.setattr(Propagation, "share", lambda self, x, factor: share(self, x, factor * size))

    return broken


def second_look_up_ignored(patch: pytest.MonkeyPatch) -> None:
    looked_up = sources.Sources.looked_up

    def first_alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.leaves:
            return next(x for x in args if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 2)
        return looked_up(self, *args, **kwargs)

    patch.setattr(sources.Sources, "looked_up", first_alone)


def landed_elsewhere(patch: pytest.MonkeyPatch) -> None:
    placed = sources._Lookup.in_input_shape
    patch.setattr(sources._Lookup, "in_input_shape", lambda self, relevance: placed(self, relevance).roll(1, 1))


def first_argument_alone(patch: pytest.MonkeyPatch) -> None:
    features, candidates = Inputs.features, Inputs.candidates
    patch.setattr(Inputs, "features", lambda self: dict(list(features(self).items())[:1]))
    patch.setattr(Inputs, "candidates", lambda self: dict(list(candidates(self).items())[:0]))


def overwritten_by_constants(patch: pytest.MonkeyPatch) -> None:
    def broken(context: Propagation, x: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        return x.detach_().copy_(make(x.detach().clone().requires_grad_()).detach())

    patch.setattr(activations, "computed_on_copy", broken)


def parameters_live(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Propagation, "constant", lambda self, x: x)


def not_frozen(kind: str) -> Break:
    """The rule is met, and nothing is frozen."""

    def broken(patch: pytest.MonkeyPatch) -> None:
        frozen, meet = Propagation.frozen, Propagation.rule_for
        state = {"kind": ""}

        def noted(self: Any, met: str, *args: Any) -> str:
            state["kind"] = met
            return meet(self, met, *args)

        patch.setattr(Propagation, "rule_for", noted)
        patch.setattr(Propagation, "frozen", lambda self, x: x if state["kind"] == kind else frozen(self, x))

    return broken


def half_of_the_values(patch: pytest.MonkeyPatch) -> None:
    split = passes.Pass._split

    def broken(self: Any, *args: Any) -> Any:
        found = split(self, *args)
        values = {name: 0.5 * x for name, x in found.relevance.values.items()}
        return found._replace(relevance=replace(found.relevance, values=values))

    patch.setattr(passes.Pass, "_split", broken)


def at_any_length(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(value_only, "SHORT", {})


def blocks(broken: Callable[[Any], Any]) -> Break:
    def patched(patch: pytest.MonkeyPatch) -> None:
        at_any_length(patch)
        patch.setattr(value_only, "values_gradient_in_blocks", broken(value_only.values_gradient_in_blocks))

    return patched


def other_scale(made: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda query, *rest: made(query * 1.1, *rest)


IDS, PAIR = torch.tensor([[3, 7, 1, 9, 4]]), (torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 6, 2]]))
EVERYTHING, LLAMA, BART = (Everything, IDS), (llama, tokens(1)), (bart, {"input_ids": torch.tensor([[5, 9, 4, 30, 2]])})
HALVED = conserva.rules("exact", bilinear="half")
GRAPH, OPINION = "graph check", "second opinion"

BREAKS: dict[str, tuple[Break, tuple[Callable[[], nn.Module], Any], Any, str]] = {
    "a softmax is not frozen": (in_table("softmax", reader=as_it_stands), EVERYTHING, "exact", GRAPH),
    "a softmax is not frozen, ah+ln": (in_table("softmax", reader=as_it_stands), EVERYTHING, "ah+ln", GRAPH),
    "fused attention is not read": (
        in_table("scaled_dot_product_attention", reader=as_it_stands), (bert, tokens(1)), "exact", GRAPH
    ),
    "attention meets its rule and is not frozen": (not_frozen("attention"), EVERYTHING, "ah+ln", GRAPH),
    "values are frozen": (values_frozen, EVERYTHING, "exact", OPINION),
    "a LayerNorm is not read": (in_table("layer_norm", reader=as_it_stands), EVERYTHING, "ah+ln", GRAPH),
    "a LayerNorm forgets the mean": (without_mean, EVERYTHING, "exact", OPINION),
    "a LayerNorm gives too much": (backward_of(norms.FrozenLayerNorm), EVERYTHING, "ah+ln", OPINION),
    "other norms give too much": (backward_of(norms.FrozenScale), EVERYTHING, "exact", OPINION),
    "an RMSNorm is not read": (in_table("rms_norm", reader=as_it_stands), EVERYTHING, "exact", GRAPH),
    "a GroupNorm is not read": (in_table("group_norm", reader=as_it_stands), EVERYTHING, "ah+ln", GRAPH),
    "norms written as products are not recognised": (
        lambda patch: patch.setattr(patterns, "read_product", lambda *_: None), LLAMA, "exact", GRAPH
    ),
    "norms written as quotients are not recognised": (
        lambda patch: patch.setattr(patterns, "read_quotient", lambda *_, **__: None), EVERYTHING, "ah+ln", GRAPH
    ),
    "an activation is not read": (in_table("silu", reader=as_it_stands), EVERYTHING, "exact", GRAPH),
    "an activation in calls is not read": (in_table("erf", reader=as_it_stands), EVERYTHING, "exact", GRAPH),
    "the ratio is wrong": (
        lambda patch: patch.setattr(elementwise, "coefficient", spoiled(1.2)(elementwise.coefficient)),
        EVERYTHING, "exact", OPINION,
    ),
    "a ratio gives too much": (backward_of(elementwise.Ratio), EVERYTHING, "exact", OPINION),
    "a fused activation gives too much": (backward_of(gated.FusedActivation), (bert, tokens(1)), "exact", OPINION),
    "a fused gate gives too much": (backward_of(gated.FusedGate), LLAMA, "exact", OPINION),
    "a product is not shared": (in_table("mul", "__mul__", reader=as_it_stands), EVERYTHING, "exact", GRAPH),
    "shares are too small": (shares(0.8), (Bilinear, IDS), HALVED, GRAPH),
    "a shared gradient is too large": (
        backward_of(live.ScaleGradient), (Bilinear, IDS), HALVED, OPINION
    ),
    "a matrix product is not read": (
        in_table("matmul", "__matmul__", reader=as_it_stands), (Bilinear, IDS), HALVED, GRAPH
    ),
    "a square is not frozen": (not_frozen("activation"), (Squared, IDS), "exact", GRAPH),
    "the second look-up is a constant": (second_look_up_ignored, BART, "exact", OPINION),
    "relevance lands on the next token": (landed_elsewhere, BART, "exact", OPINION),
    "only the first argument is an input": (first_argument_alone, (Translator, PAIR), "exact", OPINION),
    "in-place calls make constants": (overwritten_by_constants, EVERYTHING, "exact", OPINION),
    "parameters are live": (parameters_live, EVERYTHING, "exact", GRAPH),
    "half of the relevance is shown": (half_of_the_values, EVERYTHING, "exact", OPINION),
    "value-only attention gives too much": (blocks(spoiled(1.2)), (bert, tokens(1)), "exact", OPINION),
    "value-only attention at another scale": (blocks(other_scale), (bert, tokens(1)), "exact", OPINION),
}  # fmt: skip


def opinion(model: nn.Module, inputs: Any, rules: Any) -> float:
    return verify(model, inputs, 1, rules=rules, step=1e-3).error


@pytest.mark.parametrize("name", BREAKS)
def test_a_break_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, (make, inputs), rules, seen_by = BREAKS[name]
    torch.manual_seed(0)
    model = shake(make().double())
    assert opinion(model, inputs, rules) < 1e-3  # as the engine is
    monkeypatch.setattr(passes, "LARGEST_GAP", math.inf)  # many would be seen by the ledger alone
    broken(monkeypatch)
    if seen_by == GRAPH:
        with pytest.raises(conserva.Error):
            opinion(model, inputs, rules)
    else:
        assert opinion(model, inputs, rules) > 1e-2
