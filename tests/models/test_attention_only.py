"""The paper's text classifier: its formulas by loops, its four methods by hand, its life as a Hugging Face model."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    RobertaConfig,
    RobertaModel,
)

import conserva
from conserva.attribution import find
from conserva.models.attention_only import AttentionOnly, AttentionOnlyConfig, with_embeddings
from conserva.tasks.fingerprint import fingerprint
from conserva.tasks.loading import source_of
from tiny import shake

EXACT = {"rtol": 1e-9, "atol": 1e-9}
NAMES = list(conserva.methods())
VARIANTS = {"default": {}, "as released": AttentionOnlyConfig.quirks()}
LENGTHS = (5, 3, 4)
TARGETS = [0, 2, 1]

Row = list[float]


def small(**changes: object) -> AttentionOnly:
    settings = {
        "vocab_size": 40,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 9,
        "id2label": {0: "bad", 1: "fair", 2: "good"},
        "label2id": {"bad": 0, "fair": 1, "good": 2},
        **changes,
    }
    torch.manual_seed(0)
    return shake(AttentionOnly(AttentionOnlyConfig(**settings))).double()  # type: ignore[return-value]


def without_biases(model: AttentionOnly) -> AttentionOnly:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return model


def padded() -> dict[str, Tensor]:
    ids = torch.randint(1, 40, (3, 5), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * length + [0] * (5 - length) for length in LENGTHS])
    return {"input_ids": ids * mask, "attention_mask": mask}


# The model, one number at a time.


def dense(x: Row, weight: list[Row], bias: Row) -> Row:
    return [sum(a * w for a, w in zip(x, row, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


def norm(x: Row, eps: float, unbiased: bool, weight: Row | None, bias: Row | None) -> Row:
    mean = sum(x) / len(x)
    squares = sum((a - mean) ** 2 for a in x)
    below = math.sqrt(squares / (len(x) - 1)) + eps if unbiased else math.sqrt(squares / len(x) + eps)
    y = [(a - mean) / below for a in x]
    return y if weight is None or bias is None else [a * w + b for a, w, b in zip(y, weight, bias, strict=True)]


def attended(q: list[Row], k: list[Row], v: list[Row], heads: int, scaled: bool) -> list[Row]:
    width = len(q[0]) // heads
    out = [[0.0] * len(q[0]) for _ in q]
    for head in range(heads):
        dims = range(head * width, (head + 1) * width)
        for i, query in enumerate(q):
            scores = [sum(query[d] * key[d] for d in dims) / (math.sqrt(width) if scaled else 1.0) for key in k]
            powers = [math.exp(score) for score in scores]
            for d in dims:
                out[i][d] = sum(power / sum(powers) * value[d] for power, value in zip(powers, v, strict=True))
    return out


def replica(model: AttentionOnly, ids: list[int]) -> Row:
    """The logits of one text, which has no pads: other keys than those of its words have no part in the softmax."""
    config, w = model.config, {name: value.tolist() for name, value in model.state_dict().items()}
    eps = config.layer_norm_eps
    embedded = [
        [
            a + b + c
            for a, b, c in zip(
                w["embeddings.word_embeddings.weight"][one],
                w["embeddings.position_embeddings.weight"][place],
                w["embeddings.token_type_embeddings.weight"][0],
                strict=True,
            )
        ]
        for place, one in enumerate(ids)
    ]
    x = [norm(one, eps, False, w["embeddings.LayerNorm.weight"], w["embeddings.LayerNorm.bias"]) for one in embedded]
    for block in range(config.num_hidden_layers):
        at = f"blocks.{block}."
        q, k, v = (
            [dense(one, w[f"{at}{part}.weight"], w[f"{at}{part}.bias"]) for one in x]
            for part in ("query", "key", "value")
        )
        context = attended(q, k, v, config.num_attention_heads, config.scaled_scores)
        update = [dense(one, w[f"{at}output.weight"], w[f"{at}output.bias"]) for one in context]
        added = [[a + b for a, b in zip(one, other, strict=True)] for one, other in zip(x, update, strict=True)]
        weight, bias = w.get(f"{at}norm.weight"), w.get(f"{at}norm.bias")
        assert (weight is not None) == (bias is not None) == config.affine_norm
        x = [norm(one, eps, config.unbiased_norm, weight, bias) for one in added]
    pooled = [math.tanh(a) for a in dense(x[0], w["pooler.weight"], w["pooler.bias"])]
    return dense(pooled, w["classifier.weight"], w["classifier.bias"])


@pytest.mark.parametrize("unbiased_norm", [False, True])
@pytest.mark.parametrize("affine_norm", [False, True])
@pytest.mark.parametrize("scaled_scores", [False, True])
def test_the_model_equals_its_formulas(scaled_scores: bool, affine_norm: bool, unbiased_norm: bool) -> None:
    # An epsilon that is seen: inside the root, and outside of it.
    options = {"scaled_scores": scaled_scores, "affine_norm": affine_norm, "unbiased_norm": unbiased_norm}
    model, inputs = small(layer_norm_eps=0.01, **options), padded()
    ours = model(**inputs).logits.detach()
    for row, length in enumerate(LENGTHS):
        theirs = replica(model, inputs["input_ids"][row, :length].tolist())
        torch.testing.assert_close(ours[row], torch.tensor(theirs, dtype=torch.float64), **EXACT)


def test_it_has_as_many_parameters_to_train_as_the_released_model() -> None:
    # Weights and biases of 3 blocks of 4 linear layers, the pooler and the classifier, and nothing besides.
    model = with_embeddings(source_of("sentiment"), ["a", "b"], **AttentionOnlyConfig.quirks())
    width, classes = 192, 2
    expected = 3 * 4 * (width**2 + width) + (width**2 + width) + (width * classes + classes)
    assert sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) == expected


# The four methods of the paper, by detaching.


def embedded(model: AttentionOnly, ids: Tensor) -> Tensor:
    table = model.embeddings
    x = table.word_embeddings.weight[ids] + table.position_embeddings.weight[: ids.shape[1]]
    x = x + table.token_type_embeddings.weight[0]
    x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, correction=0, keepdim=True) + model.config.layer_norm_eps)
    return (x * table.LayerNorm.weight + table.LayerNorm.bias).detach()


def detached(model: AttentionOnly, inputs: dict[str, Tensor], heads: bool, norms: bool) -> Tensor:
    """R = x * df/dx at the output of the embedding block; attention probabilities and deviations detached or not."""
    config = model.config
    start = embedded(model, inputs["input_ids"]).requires_grad_()
    unseen = inputs["attention_mask"][:, None, None] == 0
    x = start
    for block in model.blocks:
        split = (x @ layer.weight.T + layer.bias for layer in (block.query, block.key, block.value))
        q, k, v = (one.reshape(3, 5, config.num_attention_heads, -1).transpose(1, 2) for one in split)
        scores = q @ k.transpose(2, 3) / (math.sqrt(q.shape[-1]) if config.scaled_scores else 1)
        p = torch.softmax(scores.masked_fill(unseen, -math.inf), -1)
        context = ((p.detach() if heads else p) @ v).transpose(1, 2).reshape(3, 5, -1)
        y = x + context @ block.output.weight.T + block.output.bias
        variance = y.var(-1, correction=int(config.unbiased_norm), keepdim=True)
        eps = config.layer_norm_eps
        deviation = variance.sqrt() + eps if config.unbiased_norm else (variance + eps).sqrt()
        x = (y - y.mean(-1, keepdim=True)) / (deviation.detach() if norms else deviation)
        if config.affine_norm:
            x = x * block.norm.weight + block.norm.bias
    pooled = torch.tanh(x[:, 0] @ model.pooler.weight.T + model.pooler.bias)
    logits = pooled @ model.classifier.weight.T + model.classifier.bias
    (grad,) = torch.autograd.grad(logits[range(3), TARGETS].sum(), start)
    return (start * grad).detach()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("rules", "heads", "norms"),
    [("gi", False, False), ("ah", True, False), ("ln", False, True), ("ah+ln", True, True)],
)
def test_the_rules_equal_detaching(rules: str, heads: bool, norms: bool, variant: str) -> None:
    model, inputs = small(layer_norm_eps=0.01, **VARIANTS[variant]), padded()
    theirs = detached(model, inputs, heads, norms)
    ours = conserva.relevance(model, inputs, TARGETS, rules=rules, at="embeddings")
    torch.testing.assert_close(ours.values["embeddings"], theirs, **EXACT)
    method = find(f"{rules}:at=embeddings").apply(model, inputs, TARGETS)
    torch.testing.assert_close(method.scores["input_ids"], theirs.sum(-1), **EXACT)
    torch.testing.assert_close(method.output, model(**inputs).logits.detach()[range(3), TARGETS], **EXACT)


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_biases_exact_sums_to_the_logit(variant: str) -> None:
    model = without_biases(small(**VARIANTS[variant]))
    found = conserva.relevance(model, padded(), TARGETS, rules="exact", at="embeddings")
    torch.testing.assert_close(found.values["embeddings"].sum((1, 2)), found.output, **EXACT)
    assert found.ledger is not None
    assert found.ledger.gap.abs().max() < 1e-9
    assert found.output.abs().min() > 0.01


@pytest.mark.parametrize("variant", VARIANTS)
def test_proposition_2_no_relevance_is_left_below_a_norm(variant: str) -> None:
    model, inputs, below = without_biases(small(**VARIANTS[variant])), padded(), []
    handles = [one.norm.register_forward_pre_hook(lambda _, args: below.append(args[0])) for one in model.blocks]
    words = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    with conserva.rules("gi"):
        logits = model(inputs_embeds=words, attention_mask=inputs["attention_mask"]).logits
    for handle in handles:
        handle.remove()
    for x, grad in zip(below, torch.autograd.grad(logits[range(3), TARGETS].sum(), below), strict=True):
        relevance = (x * grad).detach()
        assert relevance.abs().sum() > 0.01
        assert relevance.sum(-1).abs().max() < 1e-9
    # With linear heads, what is below the first norm is all that reaches the embeddings.
    frozen = conserva.relevance(model, inputs, TARGETS, rules="ah", at="embeddings").values["embeddings"]
    assert frozen.abs().sum() > 0.01
    assert frozen.sum((1, 2)).abs().max() < 1e-9


# Every method.


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", [*NAMES, "gi:at=embeddings", "ah+ln:at=embeddings:gamma=0.01"])
def test_every_method_explains_it_alone_as_in_a_batch(name: str, variant: str) -> None:
    model, inputs = small(**VARIANTS[variant]), padded()
    model.embeddings.requires_grad_(False)
    before, wanted = copy.deepcopy(model.state_dict()), [one.requires_grad for one in model.parameters()]
    together = find(name).apply(model, inputs, TARGETS)
    expected = model(**inputs).logits.detach()
    torch.testing.assert_close(together.logits, expected, **EXACT)
    for row, length in enumerate(LENGTHS):
        single = {key: value[row : row + 1, :length] for key, value in inputs.items()}
        torch.testing.assert_close(model(**single).logits.detach()[0], expected[row], **EXACT)
        alone = find(name).apply(model, single, [TARGETS[row]]).scores["input_ids"]
        found = together.scores["input_ids"][row]
        torch.testing.assert_close(found[:length], alone[0])
        assert (found[length:] == 0).all()
    assert together.scores["input_ids"].abs().max() > 0
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [one.requires_grad for one in model.parameters()] == wanted
    assert all(one.grad is None for one in model.parameters())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
    assert not model.training


def test_what_stands_in_pads_does_not_matter() -> None:
    model, inputs = small(), padded()
    other = {**inputs, "input_ids": torch.where(inputs["attention_mask"] == 1, inputs["input_ids"], 7)}
    assert torch.equal(model(**other).logits, model(**inputs).logits)
    assert not torch.allclose(model(inputs["input_ids"]).logits[1], model(**inputs).logits[1])  # pads that are seen


# A Hugging Face model.


def test_embedded_words_are_taken_for_words() -> None:
    model, inputs = small(), padded()
    table = model.get_input_embeddings()
    assert table is model.embeddings.word_embeddings
    words = {"inputs_embeds": table(inputs["input_ids"]).detach(), "attention_mask": inputs["attention_mask"]}
    assert torch.equal(model(**words).logits, model(**inputs).logits)
    of_words = conserva.relevance(model, words, TARGETS).scores("inputs_embeds")
    torch.testing.assert_close(of_words, conserva.relevance(model, inputs, TARGETS).scores("input_ids"), **EXACT)
    with pytest.raises(conserva.Error, match="input_ids and inputs_embeds are both None"):
        model(attention_mask=inputs["attention_mask"])


def test_the_first_hidden_state_is_the_embedding_block() -> None:
    model, inputs = small(), padded()
    states = model(**inputs, output_hidden_states=True).hidden_states
    assert len(states) == 3
    torch.testing.assert_close(states[0].detach(), embedded(model, inputs["input_ids"]), **EXACT)
    assert model(**inputs).hidden_states is None


def test_dropout_is_for_training_alone() -> None:
    model, inputs = small(), padded()
    assert torch.equal(model(**inputs).logits, model(**inputs).logits)
    model.train()
    assert not torch.allclose(model(**inputs).logits, model(**inputs).logits)
    still = small(hidden_dropout_prob=0.0)
    expected = still(**inputs).logits
    torch.testing.assert_close(still.train()(**inputs).logits, expected, **EXACT)


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_saved_and_loaded(variant: str, tmp_path: Path) -> None:
    model = shake(with_embeddings(source_of("sentiment"), ["bad", "fair", "good"], **VARIANTS[variant]))
    model.save_pretrained(tmp_path)
    conserva.load().tokenizer.save_pretrained(tmp_path)
    task = conserva.load(tmp_path)
    assert isinstance(task.model, AttentionOnly)
    assert task.fingerprint == fingerprint(model)
    assert task.labels == {"bad": 0, "fair": 1, "good": 2}
    options = {name: getattr(task.model.config, name) for name in AttentionOnlyConfig.quirks()}
    assert options == (VARIANTS[variant] or {"scaled_scores": True, "affine_norm": True, "unbiased_norm": False})
    ids = torch.tensor([task.encode("a joy of a film").ids])
    # Weights that lie elsewhere in memory may be summed in another order.
    torch.testing.assert_close(task.model(ids).logits, model(ids).logits)
    one = conserva.explain(task, "a joy of a film", "good", method="exact")
    assert one.output == pytest.approx(model(ids).logits[0, 2].item(), abs=1e-4)


# Embeddings of a BERT.


def test_embeddings_are_the_donors_and_frozen() -> None:
    source = source_of("sentiment")
    donor = AutoModel.from_pretrained(source, dtype=torch.float32)
    model = with_embeddings(source, ["bad", "good"])
    theirs = dict(donor.embeddings.named_parameters())
    ours = dict(model.embeddings.named_parameters())
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert {name for name, one in model.named_parameters() if not one.requires_grad} == {
        f"embeddings.{n}" for n in ours
    }
    ids = torch.tensor([[2, 43, 3954, 3]])
    states = model(ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(states[0], donor.embeddings(input_ids=ids))
    assert not model.training
    assert (model.config.hidden_size, model.config.num_labels) == (192, 2)


SIZES = {"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
OTHERS = {
    "DistilBertModel": lambda: DistilBertModel(DistilBertConfig(vocab_size=30, dim=12, n_layers=1, n_heads=2)),
    "AlbertModel": lambda: AlbertModel(AlbertConfig(**SIZES, embedding_size=6)),
    "RobertaModel": lambda: RobertaModel(RobertaConfig(**SIZES)),  # the same tables, its places counted from 2
}


@pytest.mark.parametrize("name", OTHERS)
def test_embeddings_that_are_not_berts_are_refused(name: str, tmp_path: Path) -> None:
    OTHERS[name]().save_pretrained(tmp_path / "donor")
    with pytest.raises(conserva.Error, match=f"{name}, whose embeddings differ from BERT's") as refused:
        with_embeddings(str(tmp_path / "donor"), ["a", "b"])
    assert repr(str(tmp_path / "donor")) in str(refused.value)


def test_heads_that_do_not_share_the_width_evenly_are_refused(tmp_path: Path) -> None:
    BertModel(BertConfig(**{**SIZES, "hidden_size": 20})).save_pretrained(tmp_path)
    with pytest.raises(conserva.Error, match="hidden_size=20 is not a multiple of num_attention_heads=12"):
        with_embeddings(str(tmp_path), ["a", "b"])
    assert with_embeddings(str(tmp_path), ["a", "b"], num_attention_heads=5).blocks[0].heads == 5
