"""What holds for every method: one signature, batches, pads, masks, options, and a model that stays as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import BartConfig, BartForSequenceClassification

import conserva
from conserva.attribution import find
from conserva.attribution.registry import options
from conserva.errors import NotApplicable
from tiny import Classifier, bert, llama, tokens

NAMES = list(conserva.methods())
WITHOUT_A_GRADIENT = ("random",)
BY_RULE_SET = ("gi", "ah", "ln", "ah+ln", "exact", "attnlrp", "gim", "exact+res", "attnlrp+res")
SIGNED = (*BY_RULE_SET, "ig", "path")


def padded(**how: int) -> dict[str, Tensor]:
    inputs = tokens(3, 6, **how)
    for row, length in enumerate((6, 4, 5)):
        inputs["attention_mask"][row, length:] = 0
        inputs["input_ids"][row, length:] = 0
    return inputs


def test_the_registry_has_what_the_papers_have() -> None:
    assert NAMES == [
        "random", "gi", "ah", "ln", "ah+ln", "exact", "attnlrp", "gim", "exact+res", "attnlrp+res", "ig", "path",
        "a-last", "rollout", "a-flow", "gae", "chefer", "partial-lrp", "attn-gradcam",
    ]  # fmt: skip


@pytest.mark.parametrize("build", [bert, llama], ids=["bert", "llama"])
@pytest.mark.parametrize("name", NAMES)
def test_batch_equals_single_and_pads_get_nothing(name: str, build) -> None:
    model, inputs = build().double(), padded()
    together = find(name).apply(model, inputs, [0, 1, 0])
    expected = model(**inputs).logits.detach()
    torch.testing.assert_close(together.logits, expected)
    torch.testing.assert_close(together.output, expected[range(3), [0, 1, 0]])
    for row, length in enumerate((6, 4, 5)):
        single = {key: value[row : row + 1, :length] for key, value in inputs.items()}
        alone = find(name).apply(model, single, [[0, 1, 0][row]])
        torch.testing.assert_close(together.scores["input_ids"][row, :length], alone.scores["input_ids"][0])
        assert (together.scores["input_ids"][row, length:] == 0).all()
        if name != "attn-gradcam":  # heads of negative weight leave nothing there
            assert together.scores["input_ids"][row].abs().max() > 0
    assert (together.ledger is not None) == (name in SIGNED)


@pytest.mark.parametrize("name", NAMES)
def test_left_pads_get_nothing(name: str) -> None:
    model, inputs = llama().double(), tokens(2, 6)
    inputs["attention_mask"][1, :2] = 0
    inputs["input_ids"][1, :2] = 0
    positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    found = find(name).apply(model, {**inputs, "position_ids": positions}, 0).scores["input_ids"][1]
    assert (found[:2] == 0).all()
    alone = {key: value[1:, 2:] for key, value in inputs.items()}
    torch.testing.assert_close(found[2:], find(name).apply(model, alone, 0).scores["input_ids"][0])


@pytest.mark.parametrize("name", NAMES)
def test_eager_equals_sdpa(name: str) -> None:
    model, inputs, found = bert().double(), padded(), []
    for kernel in ("eager", "sdpa"):
        model.set_attn_implementation(kernel)
        found.append(find(name).apply(model, inputs, 2).scores["input_ids"])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    inputs = padded()
    exact = find(name).apply(bert(), inputs, 2).scores["input_ids"]
    found = find(name).apply(bert().to(dtype), inputs, 2).scores["input_ids"]
    assert found.dtype == torch.float32
    assert torch.isfinite(found).all()
    if name not in ("chefer", "partial-lrp"):  # quotients of nearly 0 amplify the rounding of half precision
        assert (found - exact).abs().max() <= 0.25 * exact.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_untouched(name: str) -> None:
    model = bert()
    before = copy.deepcopy(model.state_dict())
    model.classifier.weight.requires_grad_(False)
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    kernel, grads = model.config._attn_implementation, torch.is_grad_enabled()
    find(name).apply(model, padded(), 0)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert (model.config._attn_implementation, torch.is_grad_enabled()) == (kernel, grads)


@pytest.mark.parametrize("name", NAMES)
def test_it_works_without_gradients_around(name: str) -> None:
    model, inputs = bert().double(), padded()
    expected = find(name).apply(model, inputs, 1).scores["input_ids"]
    for around in (torch.no_grad(), torch.inference_mode()):
        with around:
            torch.testing.assert_close(find(name).apply(model, inputs, 1).scores["input_ids"].clone(), expected)


@pytest.mark.parametrize("target", [None, "positive", "positive - negative", 2, [0, "positive", None]], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_target(name: str, target: object) -> None:
    found = find(name).apply(bert(), padded(), target)
    expected = conserva.relevance(bert(), padded(), target).output
    torch.testing.assert_close(found.output, expected)
    assert torch.isfinite(found.scores["input_ids"]).all()


@pytest.mark.parametrize("name", NAMES)
def test_minus_infinity_in_masks_is_no_nan(name: str) -> None:
    torch.manual_seed(0)
    model = Classifier().eval().double()
    ids, padding = torch.randint(0, 50, (2, 5)), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    found = next(iter(find(name).apply(model, (ids, padding), 1).scores.values()))
    assert torch.isfinite(found).all()
    if name != "random":  # nothing but the model knows what this mask means
        assert (found[1, 3:] == 0).all()
        alone = next(iter(find(name).apply(model, (ids[1:, :3], padding[1:, :3]), 1).scores.values()))
        torch.testing.assert_close(found[1:, :3], alone)


@pytest.mark.parametrize("name", NAMES)
def test_nan_weights_are_named(name: str) -> None:
    model = bert()
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(conserva.Error, match=r"nan or inf.*layer\.1\.output\.dense"):
        find(name).apply(model, padded(), 0)


class Averages(nn.Module):
    """No attention at all."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(99, 8), nn.Linear(8, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.out(self.words(input_ids).mean(1))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_A_GRADIENT])
def test_a_model_without_attention_is_refused(name: str) -> None:
    with pytest.raises(conserva.Error, match="Averages has no attention"):
        find(name).apply(Averages(), {"input_ids": torch.randint(0, 99, (2, 4))}, 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_target_is_named(name: str) -> None:
    with pytest.raises(conserva.Error, match="target=7 is out of range"):
        find(name).apply(bert(), padded(), 7)


def test_random_is_uniform_and_seeded() -> None:
    model, inputs = bert(), tokens(1, 5)
    first = find("random").apply(model, inputs, 0).scores["input_ids"][0]
    assert sorted(first.tolist()) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    torch.testing.assert_close(first, find("random:seed=0").apply(model, inputs, 0).scores["input_ids"][0])
    tops = [0] * 5
    for seed in range(500):
        tops[int(find(f"random:seed={seed}").apply(model, inputs, 0).scores["input_ids"].argmax())] += 1
    assert all(70 <= count <= 130 for count in tops)


@pytest.mark.parametrize("gamma", [0.0, 0.25])
@pytest.mark.parametrize("at", ["inputs", "embeddings"])
@pytest.mark.parametrize("name", BY_RULE_SET)
def test_options_of_rule_sets_are_those_of_relevance(name: str, at: str, gamma: float) -> None:
    model, inputs = bert().double(), padded()
    rules = conserva.rules(name, gamma=gamma) if gamma else conserva.rules(name)
    expected = conserva.relevance(model, inputs, [0, 1, 0], rules=rules, at=at)
    found = find(f"{name}:at={at}:gamma={gamma}").apply(model, inputs, [0, 1, 0])
    torch.testing.assert_close(found.scores["input_ids"], expected.scores())
    torch.testing.assert_close(found.ledger.gap, expected.ledger.gap)
    torch.testing.assert_close(found.logits, model(**inputs).logits.detach())
    if gamma or at == "embeddings":
        plain = find(name).apply(model, inputs, [0, 1, 0]).scores["input_ids"]
        assert (found.scores["input_ids"] - plain).abs().max() > 1e-3


@pytest.mark.parametrize("build", [bert, llama], ids=["bert", "llama"])
@pytest.mark.parametrize("name", BY_RULE_SET)
def test_at_the_embeddings_a_batch_equals_single_and_pads_get_nothing(name: str, build) -> None:
    model, inputs, method = build().double(), padded(), find(f"{name}:at=embeddings")
    together = method.apply(model, inputs, [0, 1, 0]).scores["input_ids"]
    for row, length in enumerate((6, 4, 5)):
        single = {key: value[row : row + 1, :length] for key, value in inputs.items()}
        alone = method.apply(model, single, [[0, 1, 0][row]]).scores["input_ids"][0]
        torch.testing.assert_close(together[row, :length], alone)
        assert (together[row, length:] == 0).all()


def test_at_the_embeddings_is_for_models_of_one_sequence() -> None:
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    bart = BartForSequenceClassification(BartConfig(vocab_size=99, eos_token_id=3, pad_token_id=0, **sizes, **heads))
    inputs = tokens(2, 6)
    inputs["input_ids"][:, -1] = 3
    with pytest.raises(NotApplicable, match="one sequence; this model has encoder_embeddings, decoder_embeddings"):
        find("gi:at=embeddings").apply(bart.eval(), {**inputs, "decoder_input_ids": inputs["input_ids"].clone()}, 0)


def test_options_are_named_in_the_method() -> None:
    assert options("random") == {"seed": 0}
    for name in BY_RULE_SET:
        strength = 1.0 if name.endswith("+res") else 0.0
        assert options(name) == {"at": "inputs", "gamma": 0.0, "bilinear": "refuse", "residual": strength}
    assert find("gi:gamma=0:at=inputs").name == "gi"
    assert find("ah+ln:gamma=1e-2:at=embeddings").name == "ah+ln:at=embeddings:gamma=0.01"
    assert find("ig:steps=50").name == "ig"
    chosen = find("chefer:start=1:normalise=yes")
    assert chosen.name == "chefer:normalise=yes:start=1"
    assert chosen.options == {"normalise": "yes", "start": 1}
    assert find("ig:baseline=None").options == {"steps": 50, "baseline": None}
    one = conserva.explain(conserva.load(), "a joy.", method="random:seed=3")
    assert one.method == "random:seed=3"
    assert one.provenance["options"] == {"seed": 3}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("random:sed=1", r"'sed=1' is not a valid option of 'random'; its options: seed=0"),
        (
            "gi:seed=1",
            r"'seed=1' is not a valid option of 'gi'; its options: at=inputs, gamma=0.0, bilinear=refuse",
        ),
        ("gi:at=words", "at=words is not one of inputs, embeddings"),
        ("gi:gamma=little", "gamma=little is not a finite number"),
        ("ah+ln:gamma=1e400", "gamma=1e400 is not a finite number"),
        ("exact:gamma=nan", "gamma=nan is not a finite number"),
        ("attnlrp:gamma=-inf", "gamma=-inf is not a finite number"),
        ("gi:gamma=-1", "gamma=-1.0 must be a positive number"),
        ("gi:gamma=nan", "gamma=nan is not a finite number"),
        ("random:seed", "'seed' is not a valid option"),
        ("random:seed=x", "seed=x is not a whole number"),
        ("rollout:rows=cls", "rows=cls is not one of read, all"),
        ("chefer:start=9", r"start=9 is not a layer of the model: it has layers 0 to 1"),
        ("roll-out", "Did you mean 'rollout'"),
        ("", "is unknown"),
    ],
)
def test_wrong_options_are_refused(given: str, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        find(given).apply(bert(), padded(), 0)
