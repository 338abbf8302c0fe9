"""Attention methods against loops written from their definitions, on what a Hugging Face model itself reports."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BartConfig, BartModel

from attention_replicas import (
    REPLICAS,
    Maps,
    identity,
)
from conserva import Error
from conserva.attribution.attention_pass import attention_pass
from conserva.attribution.registry import find
from tiny import bert, llama, shake, tokens

MODELS = {
    "bert": (lambda: bert(num_hidden_layers=3, attn_implementation="eager").double(), 0),
    "llama": (lambda: llama(num_hidden_layers=3, attn_implementation="eager").double(), -1),
}
"""Name -> how to build it, and the place that its classifier reads."""


def layers_of(model: nn.Module, ids: Tensor, target: int) -> Maps:
    """Return what the model reports about one sample."""
    output = model(input_ids=ids[None], output_attentions=True)
    grads = torch.autograd.grad(output.logits[0, target], output.attentions)
    return [(a[0].detach(), g[0]) for a, g in zip(output.attentions, grads, strict=True)]


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("method", REPLICAS)
def test_a_method_equals_its_replica_sample_by_sample(method: str, family: str) -> None:
    build, read = MODELS[family]
    model = build()
    inputs = tokens(3, 6)
    lengths = [6, 4, 5]
    for row, length in enumerate(lengths):
        inputs["attention_mask"][row, length:] = 0
        inputs["input_ids"][row, length:] = 0
    model.set_attn_implementation("sdpa")
    found = find(method).apply(model, inputs, [0, 1, 0])
    model.set_attn_implementation("eager")
    for row, (length, target) in enumerate(zip(lengths, [0, 1, 0], strict=True)):
        maps = layers_of(model, inputs["input_ids"][row, :length], target)
        expected = torch.tensor(REPLICAS[method](maps, read), dtype=torch.float64)
        torch.testing.assert_close(found.scores["input_ids"][row, :length], expected, rtol=1e-6, atol=1e-9)
        assert (found.scores["input_ids"][row, length:] == 0).all()


def normalised(relevance: Tensor) -> Tensor:
    """Equations 8 and 9 of Chefer et al. (ICCV 2021), row by row; a row of zeros stays."""
    n = len(relevance)
    result = torch.zeros_like(relevance)
    for i in range(n):
        rest = [float(relevance[i, j]) - identity(n, i, j) for j in range(n)]
        for j in range(n):
            result[i, j] = (rest[j] / sum(rest) if sum(rest) != 0 else 0.0) + identity(n, i, j)
    return result


def cam(attention: Tensor, gradient: Tensor) -> Tensor:
    return torch.tensor(
        [
            [
                sum(max(float(a), 0.0) for a in (attention * gradient)[:, i, j]) / len(attention)
                for j in range(attention.shape[2])
            ]
            for i in range(attention.shape[1])
        ],
        dtype=torch.float64,
    )


def test_gae_of_an_encoder_and_a_decoder() -> None:
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=99, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32,
        eos_token_id=2, pad_token_id=1, attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    model = shake(BartModel(config)).double()
    ids = torch.tensor([[5, 17, 33, 41, 2]])
    decoder_ids = torch.tensor([[2, 11, 2]])  # read at its last end token
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": decoder_ids}
    output = model(**inputs, output_attentions=True)
    maps = [*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions]
    number = output.last_hidden_state[0, -1].sum()
    grads = torch.autograd.grad(number, maps)
    cams = [cam(a[0].detach(), g[0]) for a, g in zip(maps, grads, strict=True)]
    r_ee, r_dd, r_de = torch.eye(5).double(), torch.eye(3).double(), torch.zeros(3, 5).double()
    for a in cams[:2]:
        r_ee = r_ee + a @ r_ee
    for own, cross in zip(cams[2:4], cams[4:], strict=True):
        r_dd, r_de = r_dd + own @ r_dd, r_de + own @ r_de
        r_de = r_de + normalised(r_dd).T @ cross @ normalised(r_ee)
    r_dd[2, 2] = 0
    found = find("gae").apply(model, inputs, lambda output: output.last_hidden_state[:, -1].sum(-1))
    torch.testing.assert_close(found.scores["input_ids"][0], r_de[2], rtol=1e-6, atol=1e-10)
    torch.testing.assert_close(found.scores["decoder_input_ids"][0], r_dd[2], rtol=1e-6, atol=1e-10)


class TwoSequences(nn.Module):
    """Words and boxes: each looks at itself, then both at each other at the same time, then each at itself again."""

    def __init__(self) -> None:
        super().__init__()
        names = ["t1", "b1", "tb1", "bt1", "t2", "b2", "tb2", "bt2", "t3"]
        self.layers = nn.ModuleDict({name: nn.Linear(8, 24) for name in names})
        self.words, self.boxes, self.out = nn.Embedding(40, 8), nn.Linear(4, 8), nn.Linear(8, 2)
        self.maps: dict[str, Tensor] = {}

    def look(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = self.layers[name].weight.chunk(3)
        split = lambda t: t.unflatten(-1, (2, 4)).transpose(1, 2)  # noqa: E731
        probabilities = (split(x @ q.T) @ split(y @ k.T).mT / 2).softmax(-1)
        self.maps[name] = probabilities
        return (probabilities @ split(y @ v.T)).transpose(1, 2).flatten(2)

    def forward(self, input_ids: Tensor, boxes: Tensor) -> Tensor:
        t, b = self.words(input_ids), self.boxes(boxes)
        for i in "12":
            t, b = t + self.look(f"t{i}", t, t), b + self.look(f"b{i}", b, b)
            t, b = t + self.look(f"tb{i}", t, b), b + self.look(f"bt{i}", b, t)
        t = t + self.look("t3", t, t)
        return self.out(t[:, 0])


def test_gae_of_two_sequences_that_look_at_each_other() -> None:
    model = shake(TwoSequences(), 0.5).double()
    ids, boxes = torch.randint(0, 40, (2, 4)), torch.randn(2, 3, 4).double()
    found = find("gae").apply(model, {"input_ids": ids, "boxes": boxes}, [0, 1])
    for row, target in enumerate((0, 1)):
        output = model(ids[row : row + 1], boxes[row : row + 1])
        used = {name: one for name, one in model.maps.items() if name != "bt2"}  # nothing comes after it
        grads = torch.autograd.grad(output[0, target], list(used.values()))
        a = {name: cam(used[name][0].detach(), g[0]) for name, g in zip(used, grads, strict=True)}
        tt, bb = torch.eye(4).double(), torch.eye(3).double()
        tb, bt = torch.zeros(4, 3).double(), torch.zeros(3, 4).double()
        for i in "12":
            tt, tb = tt + a[f"t{i}"] @ tt, tb + a[f"t{i}"] @ tb
            bb, bt = bb + a[f"b{i}"] @ bb, bt + a[f"b{i}"] @ bt
            more_tb = normalised(tt).T @ a[f"tb{i}"] @ normalised(bb)
            more_tt = a[f"tb{i}"] @ bt
            if i == "1":
                more_bt = normalised(bb).T @ a["bt1"] @ normalised(tt)
                more_bb = a["bt1"] @ tb
                bt, bb = bt + more_bt, bb + more_bb
            tb, tt = tb + more_tb, tt + more_tt
        tt, tb = tt + a["t3"] @ tt, tb + a["t3"] @ tb
        tt[0, 0] = 0
        torch.testing.assert_close(found.scores["input_ids"][row], tt[0], rtol=1e-6, atol=1e-10)
        torch.testing.assert_close(found.scores["boxes"][row], tb[0], rtol=1e-6, atol=1e-10)


def test_a_zero_row_is_no_nan() -> None:
    """With gradients that are all negative the first layer adds nothing: 0/0 in the released code."""
    model = shake(TwoSequences(), 0.5).double()
    ids, boxes = torch.randint(0, 40, (1, 4)), torch.randn(1, 3, 4).double()
    for target in (0, 1):
        found = find("gae").apply(model, {"input_ids": ids, "boxes": boxes}, target)
        assert all(torch.isfinite(one).all() for one in found.scores.values())


def test_side_by_side_maps_are_no_stack() -> None:
    class Twins(TwoSequences):
        def forward(self, input_ids: Tensor, *_: Any) -> Tensor:  # type: ignore[override]
            t = self.words(input_ids)
            return self.out((t + self.look("t1", t, t) - self.look("t2", t, t))[:, 0])

    model = shake(Twins())
    assert len(attention_pass(model, {"input_ids": torch.randint(0, 40, (1, 4))}, 0).maps) == 2
    with pytest.raises(Error, match="several in parallel"):
        find("rollout").apply(model, {"input_ids": torch.randint(0, 40, (1, 4))}, 0)


class Thrifty(TwoSequences):
    """Two layers of words, of which some places alone look in the second."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, input_ids: Tensor, *_: Any) -> Tensor:  # type: ignore[override]
        x = self.words(input_ids)
        x = x + self.look("t1", x, x)
        if self.way == "all":
            x = (x + self.look("t2", x, x))[:, 2]
        elif self.way == "one":
            x = (x[:, 2:3] + self.look("t2", x[:, 2:3], x))[:, 0]
        elif self.way == "two":
            x = (x[:, [2, 0]] + self.look("t2", x[:, [2, 0]], x)).sum(1)
        elif self.way == "two into one":
            x = x[:, 0] + self.look("t2", x[:, :2], x).sum(1)
        elif self.way == "below":
            y = x[:, :1] + self.look("t2", x[:, :1], x)
            x = torch.cat([y, x[:, 1:]], 1)
            x = (x + self.look("t3", x, x))[:, 0]
        elif self.way == "no skip":
            x = self.look("t2", x[:, :1], x)[:, 0]
        else:  # the mean of all places looks
            x = x.mean(1) + self.look("t2", x.mean(1, keepdim=True), x)[:, 0]
        return self.out(x)


ON_MAPS = ("a-last", "rollout", "a-flow", "gae", "chefer", "partial-lrp", "attn-gradcam")


@pytest.mark.parametrize("method", ON_MAPS)
def test_one_place_that_looks_alone_is_found_wherever_it_stands(method: str) -> None:
    ids = torch.randint(0, 40, (3, 5), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = shake(Thrifty("one"), 0.5).double()
    one = find(method).apply(model, {"input_ids": ids}, [0, 1, 0]).scores["input_ids"]
    model.way = "all"
    every = find(method).apply(model, {"input_ids": ids}, [0, 1, 0]).scores["input_ids"]
    torch.testing.assert_close(one, every, rtol=1e-9, atol=1e-10)
    assert every.abs().max() > 1e-4


@pytest.mark.parametrize("way", ["two", "two into one", "below", "no skip", "mean"])
@pytest.mark.parametrize("method", ON_MAPS)
def test_places_that_look_alone_are_refused_where_it_is_not_known_which(method: str, way: str) -> None:
    model, ids = shake(Thrifty(way), 0.5).double(), torch.randint(0, 40, (2, 5))
    says = "cannot be combined across layers" if method == "gae" else f"{method} needs attention from all positions"
    says = "2 positions for 5 tokens" if way.startswith("two") else says
    with pytest.raises(Error, match=says):
        find(method).apply(model, {"input_ids": ids}, [0, 1])
