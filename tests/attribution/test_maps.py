"""Attention maps: those of every Hugging Face type equal what the model itself reports, from any implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
import zoo
from conserva.attribution.attention_maps import MapRecorder
from conserva.attribution.attention_pass import attention_pass
from conserva.attribution.registry import find
from conserva.engine.sources import Sources
from tiny import Classifier, HandWritten, Translator, bert, llama, tokens
from types_without_maps import REFUSED
from zoo_types import MODEL_TYPES, WORKING, made, mixture, one_of, shared

BATCH_SENSITIVE = ("cvt", "levit")
"""Their own plain gradient differs between a batch and a single sample, with torch's batch norm on the CPU."""


REPORT_OTHERS = {
    "cpmant": "leaves out the places of its prompt",
    "diffllama": "reports the difference of its two maps",
    "hrm_text": "reports only the last of its rounds",
    "squeezebert": "reports the scores before the softmax",
    "t5gemma": "reports the encoder's alone",
    "wavlm": "computes the reported ones apart, without its position bias",
}
"""Model types that report something else as their attentions, with the reason."""


def reported(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor] | None:
    """Return the maps that a Hugging Face model reports, in the order of its layers."""
    output = model(**inputs, output_attentions=True)
    if getattr(output, "cross_attentions", None) and getattr(output, "encoder_attentions", None):
        pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
        return [*output.encoder_attentions, *(one for pair in pairs for one in pair)]
    return list(output.attentions) if getattr(output, "attentions", None) else None


@pytest.mark.parametrize("specimen", WORKING, ids=MODEL_TYPES)
def test_maps_equal_those_the_model_reports(specimen: zoo.Specimen) -> None:
    model, inputs = made(specimen)
    if specimen.model_type in REFUSED:
        with pytest.raises(conserva.Error) as error:
            find("gae").apply(model, inputs, mixture)
        assert "use a method by rules" in str(error.value) or "across layers" in str(error.value)
        return
    found = [one.probabilities for one in attention_pass(model, inputs, mixture).maps]
    if specimen.model_type in REPORT_OTHERS:
        pytest.skip(REPORT_OTHERS[specimen.model_type])
    try:
        expected = reported(shared(specimen, attn_implementation="eager"), inputs)
    except (ValueError, TypeError, NotImplementedError, RuntimeError, AttributeError) as failure:
        pytest.skip(f"the model does not report its maps: {str(failure).splitlines()[0][:80]}")
    if expected is None or not all(isinstance(one, Tensor) for one in expected):
        pytest.skip("the model does not report its maps")
    assert [one.shape for one in found] == [one.shape for one in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.detach().to(one), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gae", "chefer", "rollout"])
@pytest.mark.parametrize("specimen", WORKING, ids=MODEL_TYPES)
def test_batch_equals_single_or_the_method_says_why_not(specimen: zoo.Specimen, name: str) -> None:
    model, inputs = made(specimen)
    try:
        together = find(name).apply(model, inputs, mixture)
    except conserva.Error as error:
        if name not in str(error) and specimen.model_type not in REFUSED:
            raise  # it must say that the method does not apply
        return
    assert all(torch.isfinite(scores).all() for scores in together.scores.values())
    if len(together.output) == 1 or specimen.model_type in BATCH_SENSITIVE:
        return
    single = find(name).apply(model, one_of(inputs), mixture)
    for place, scores in together.scores.items():
        torch.testing.assert_close(scores[:1], single.scores[place], rtol=2e-3, atol=1e-4 * float(scores.abs().max()))


def test_most_of_the_zoo_has_maps() -> None:
    assert len(WORKING) - len(REFUSED) >= 245


@pytest.mark.parametrize("model", [bert(), llama()], ids=["bert", "llama"])
def test_an_implementation_need_not_be_chosen(model: nn.Module) -> None:
    found = {}
    for kernel in ("eager", "sdpa"):
        model.set_attn_implementation(kernel)
        found[kernel] = [one.probabilities for one in attention_pass(model, tokens(), 0).maps]
        assert model.config._attn_implementation == kernel
    for eager, fused in zip(found["eager"], found["sdpa"], strict=True):
        torch.testing.assert_close(eager, fused)


def test_maps_of_models_written_by_hand() -> None:
    torch.manual_seed(0)
    model = HandWritten().eval()
    ids = torch.randint(0, 50, (2, 6))
    (one,) = attention_pass(model, ids, 0).maps
    x = model.words(ids) + model.places[:, :6]
    q, k, _ = model.qkv(model.norm(x)).chunk(3, -1)
    for sample in range(2):
        for head in range(3):
            part = slice(4 * head, 4 * head + 4)
            scores = q[sample, :, part] @ k[sample, :, part].T / 2
            torch.testing.assert_close(one.probabilities[sample, head], scores.softmax(-1).detach())


def test_maps_of_torch_layers_with_a_padding_mask() -> None:
    torch.manual_seed(0)
    model = Classifier().eval()
    ids, padding = torch.randint(0, 50, (2, 5)), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    first = attention_pass(model, (ids, padding), 0).maps[0]
    layer = model.encoder.layers[0].self_attn
    x = model.words(ids)
    _, expected = layer(x, x, x, key_padding_mask=padding, need_weights=True, average_attn_weights=False)
    torch.testing.assert_close(first.probabilities, expected.detach())
    assert (first.probabilities[1, :, :, 3:] == 0).all()


def test_sequences_are_told_apart_at_equal_length() -> None:
    model = Translator().eval()
    inputs = {"input_ids": torch.randint(0, 50, (2, 6)), "decoder_input_ids": torch.randint(0, 50, (2, 6))}
    encoder, decoder, cross = attention_pass(model, inputs, 7).maps
    source, target = frozenset({"input_ids"}), frozenset({"decoder_input_ids"})
    assert (encoder.query.sequence, encoder.key.sequence) == (source, source)
    assert (decoder.query.sequence, decoder.key.sequence) == (target, target)
    assert (cross.query.sequence, cross.key.sequence) == (target, source)
    assert cross.key.written == {encoder.number}
    assert cross.query.written == {decoder.number}


class Pooled(nn.Module):
    """One layer of attention, spelled in several ways, and a choice of what is read."""

    def __init__(self, spelling: str, reads: str) -> None:
        super().__init__()
        self.words, self.qkv, self.out = nn.Embedding(50, 8), nn.Linear(8, 24), nn.Linear(8, 3)
        self.spelling, self.reads = spelling, reads

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.words(ids)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        bias = torch.zeros(ids.shape) if mask is None else torch.zeros(ids.shape).masked_fill(mask == 0, -torch.inf)
        scores = q @ k.mT / 2 + bias[:, None, None]
        if self.spelling == "fused":
            y = F.scaled_dot_product_attention(q, k, v, bias[:, None, None] != -torch.inf)
        elif self.spelling == "values first":
            y = (v.mT @ scores.softmax(-1).mT).mT
        elif self.spelling == "keys first":
            y = torch.einsum("bhkq,bhkd->bhqd", scores.mT.softmax(-2), v)
        elif self.spelling == "ellipsis":
            y = torch.einsum("...ij,...jd->...id", scores.softmax(-1), v)
        else:
            y = torch.bmm(scores.softmax(-1).flatten(0, 1), v.flatten(0, 1)).unflatten(0, (-1, 2))
        x = x + y.transpose(1, 2).flatten(2)
        return self.out({"first": x[:, 0], "last": x[:, -1], "mean": x.mean(1), "two": x[:, 1] + x[:, 2]}[self.reads])


@pytest.mark.parametrize("spelling", ["fused", "values first", "keys first", "ellipsis", "folded"])
def test_every_spelling_of_a_map(spelling: str) -> None:
    torch.manual_seed(0)
    model, ids = Pooled(spelling, "first"), torch.randint(0, 50, (2, 5))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    (one,) = attention_pass(model, (ids, mask), 0).maps
    q, k, _ = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in model.qkv(model.words(ids)).chunk(3, -1))
    expected = (q @ k.mT / 2).masked_fill(mask[:, None, None] == 0, -torch.inf).softmax(-1)
    torch.testing.assert_close(one.probabilities, expected.detach())


@pytest.mark.parametrize(("reads", "rows"), [("first", [0]), ("last", [4]), ("mean", [0, 1, 2, 3, 4]), ("two", [1, 2])])
def test_the_places_that_are_read_are_found(reads: str, rows: list[int]) -> None:
    model, ids = Pooled("fused", reads), torch.randint(0, 50, (2, 5))
    assert attention_pass(model, ids, 0).rows()[0].nonzero().flatten().tolist() == rows


class Convolved(Pooled):
    """A convolution over places between two layers of attention."""

    def __init__(self) -> None:
        super().__init__("fused", "first")
        self.conv = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        x = self.words(ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        x = x + self.conv(x.mT).mT
        return self.out((x + F.scaled_dot_product_attention(x, x, x))[:, 0])


class Linear(Pooled):
    """Attention without a softmax beside attention with one."""

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        x = self.words(ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((x + q @ (k.mT @ v))[:, 0])


class Windowed(Pooled):
    """Attention within windows of two places."""

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        x = self.words(ids).reshape(-1, 2, 8)
        return self.out((x + F.scaled_dot_product_attention(x, x, x)).reshape(len(ids), -1, 8)[:, 0])


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Convolved(), "Convolved mixes positions by convolution"),
        (Linear("fused", "first"), "Linear mixes positions by bmm"),
        (Windowed("fused", "first"), "within windows"),
    ],
    ids=["convolution", "linear attention", "windows"],
)
@pytest.mark.parametrize("name", ["a-last", "rollout", "a-flow", "gae", "chefer", "partial-lrp", "attn-gradcam"])
def test_maps_that_do_not_tell_the_whole_are_refused(model: nn.Module, says: str, name: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        find(name).apply(model, (torch.randint(0, 50, (3, 6)),), 0)


def test_a_query_that_sees_nothing_takes_nothing() -> None:
    model, ids = Pooled("fused", "first"), torch.randint(0, 50, (2, 5))
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    attended = attention_pass(model, (ids[:1], mask[:1]), 0)
    torch.testing.assert_close(attended.output, model(ids[:1], mask[:1])[:, 0].detach())
    recorded = MapRecorder(Sources({}, {}, False, ()), 2)
    x = torch.randn(2, 1, 5, 4, requires_grad=True)
    open_to = mask[:, None, None].bool()
    with recorded:
        found = F.scaled_dot_product_attention(x, x, x, open_to)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(x, x, x, open_to))
    assert (found[1] == 0).all()
