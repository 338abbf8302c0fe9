"""Relevance of whole models: batches, padding, dtypes, targets, places, checkpoints."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import conserva
from tiny import Classifier, HandWritten, Translator, bert, llama, shake, tokens

RULE_SETS = ("gi", "ah", "ln", "ah+ln", "exact", "attnlrp", "gim", "exact+res", "attnlrp+res")
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("make", [bert, llama])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_forward_is_unchanged_and_relevance_is_gradient_times_input(rules: str, make, kernel: str) -> None:
    model, inputs = make(attn_implementation=kernel), tokens()
    result = conserva.relevance(model, inputs, 1, rules=rules)
    torch.testing.assert_close(result.output, model(**inputs).logits[:, 1].detach(), rtol=1e-6, atol=1e-7)
    x = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    with conserva.rules(rules):
        logits = model(inputs_embeds=x, attention_mask=inputs["attention_mask"]).logits
    if make is llama:  # the head pools by pad ids, which embeddings do not show: the last token is the same one here
        assert logits.shape == (3, 2)
    (grad,) = torch.autograd.grad(logits[:, 1].sum(), x)
    torch.testing.assert_close(result.values["input_ids"], (x * grad).detach(), **CLOSE)


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("make", [bert, llama])
def test_eager_equals_sdpa(rules: str, make) -> None:
    eager, fused = (
        conserva.relevance(make(attn_implementation=kernel), tokens(), 1, rules=rules) for kernel in ("eager", "sdpa")
    )
    torch.testing.assert_close(eager.values["input_ids"], fused.values["input_ids"], **CLOSE)
    for entry in ("inputs", "positions", "biases"):
        torch.testing.assert_close(getattr(eager.ledger, entry), getattr(fused.ledger, entry), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("make", [bert, llama])
def test_batch_equals_single(rules: str, make) -> None:
    model, inputs = make(), tokens(batch=4)
    together = conserva.relevance(model, inputs, 1, rules=rules)
    for i in range(4):
        alone = conserva.relevance(model, {k: v[i : i + 1] for k, v in inputs.items()}, 1, rules=rules)
        torch.testing.assert_close(alone.scores()[0], together.scores()[i], **CLOSE)
        for entry in ("inputs", "positions", "biases", "gap"):
            torch.testing.assert_close(getattr(alone.ledger, entry)[0], getattr(together.ledger, entry)[i], **CLOSE)


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_padding_left_right_or_none_agree_and_pads_get_exactly_zero(rules: str, kernel: str) -> None:
    model, plain = bert(attn_implementation=kernel), tokens(batch=1, length=5)
    ids, alone = plain["input_ids"], conserva.relevance(model, plain, 1, rules=rules)
    pads, ones = torch.zeros(1, 3, dtype=torch.long), torch.ones_like(ids)
    for left in (False, True):
        order = (pads, ids) if left else (ids, pads)
        inputs = {
            "input_ids": torch.cat(order, 1),
            "attention_mask": torch.cat((pads, ones) if left else (ones, pads), 1),
            "position_ids": (torch.arange(8)[None] - (3 if left else 0)).clamp(min=0),
        }
        # BERT's pooler reads the first token, which is a pad when pads are on the left: it reads the first real one.
        result = conserva.relevance(_PoolAt(model, 3 if left else 0), inputs, 1, rules=rules)
        scores, real = result.scores(), inputs["attention_mask"] == 1
        assert (scores[~real] == 0).all()
        torch.testing.assert_close(scores[real], alone.scores()[0], **CLOSE)


class _PoolAt(torch.nn.Module):
    """A classifier whose pooler reads another token than the first."""

    def __init__(self, model: torch.nn.Module, place: int) -> None:
        super().__init__()
        self.inner, self.place = model, place

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        hidden = self.inner.bert(input_ids, attention_mask, position_ids=position_ids).last_hidden_state
        return self.inner.classifier(self.inner.bert.pooler(hidden[:, self.place :]))


def test_left_padded_decoder_pads_get_exactly_zero() -> None:
    model, ids = llama(), tokens(batch=1, length=5)["input_ids"]
    alone = conserva.relevance(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, 1, rules="exact")
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1)
    mask = (padded != 0).long()
    inputs = {"input_ids": padded, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    scores = conserva.relevance(model, inputs, 1, rules="exact").scores()
    assert (scores[:, :3] == 0).all()
    torch.testing.assert_close(scores[:, 3:], alone.scores(), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("make", [bert, llama])
def test_half_precision_is_finite_and_close(dtype: torch.dtype, rules: str, make) -> None:
    full = conserva.relevance(make(), tokens(), 1, rules=rules)
    half = conserva.relevance(make().to(dtype), tokens(), 1, rules=rules)
    assert half.scores().dtype == torch.float32
    assert torch.isfinite(half.scores()).all()
    coarse = 0.02 if dtype == torch.float16 else 0.15
    scale = full.scores().abs().max()
    assert (half.scores() - full.scores()).abs().max() < coarse * scale


def test_tiny_gradients_survive_float16() -> None:
    """Below 6e-8 float16 has no numbers; the gradient travels scaled, and comes back."""
    model = bert().half()
    result = conserva.relevance(model, tokens(), lambda output: output.logits[:, 1] * 2**-20, rules="ah+ln")
    plain = conserva.relevance(model, tokens(), 1, rules="ah+ln")
    error = (result.scores() * 2**20 - plain.scores()).abs().max() / plain.scores().abs().max()
    assert error < 0.02


def test_float64_in_float64_out() -> None:
    assert conserva.relevance(bert().double(), tokens(), 1).scores().dtype == torch.float64


class Checkpointed(HandWritten):
    """A hand-written model whose body can be computed again during the backward pass."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again

    def body(self, x: Tensor) -> Tensor:
        q, k, v = (part[:, None] for part in self.qkv(self.norm(x + self.places[:, : x.shape[1]])).chunk(3, -1))
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v)[:, 0])
        u = self.up(self.norm(x))
        return x + self.down(0.5 * u * (1 + torch.tanh(u)))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = checkpoint(self.body, x, use_reentrant=False) if self.again else self.body(x)
        return self.out(self.norm(x).mean(1))


@pytest.mark.parametrize("rules", RULE_SETS)
def test_checkpointed_equals_plain_bit_for_bit(rules: str) -> None:
    plain, again = shake(Checkpointed(False)), shake(Checkpointed(True))
    again.load_state_dict(plain.state_dict())
    ids = torch.randint(0, 50, (2, 6))
    expected, result = (conserva.relevance(model, ids, 1, rules=rules) for model in (plain, again))
    assert torch.equal(expected.values["ids"], result.values["ids"])
    assert torch.equal(expected.ledger.gap, result.ledger.gap)
    assert [m.times for m in expected.coverage] == [m.times for m in result.coverage]


def test_checkpointed_hugging_face_model_equals_plain_bit_for_bit() -> None:
    settings = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    plain, again = bert(**settings), bert(**settings)
    again.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again.train()
    expected, result = (conserva.relevance(model, tokens(), 1, rules="exact") for model in (plain, again))
    assert torch.equal(expected.values["input_ids"], result.values["input_ids"])


# Targets


def test_targets_by_index_label_contrast_and_function_agree() -> None:
    model, inputs = bert(), tokens()
    by_label = conserva.relevance(model, inputs, "positive").scores()
    assert torch.equal(by_label, conserva.relevance(model, inputs, 2).scores())
    assert torch.equal(by_label, conserva.relevance(model, inputs, lambda output: output.logits[:, 2]).scores())
    contrast = conserva.relevance(model, inputs, "positive - negative")
    difference = by_label - conserva.relevance(model, inputs, "negative").scores()
    torch.testing.assert_close(contrast.scores(), difference, rtol=1e-4, atol=1e-6)
    logits = model(**inputs).logits
    torch.testing.assert_close(contrast.output, (logits[:, 2] - logits[:, 0]).detach())


def test_default_target_is_the_prediction() -> None:
    model, inputs = bert(), tokens()
    torch.testing.assert_close(conserva.relevance(model, inputs).output, model(**inputs).logits.max(-1).values.detach())


@pytest.mark.parametrize("targets", [[0, "positive", "1 - 2"], torch.tensor([0, 2, 1])])
def test_a_target_for_each_sample(targets) -> None:
    model, inputs = bert(), tokens()
    together = conserva.relevance(model, inputs, targets)
    for i, target in enumerate(targets.tolist() if isinstance(targets, Tensor) else targets):
        alone = conserva.relevance(model, {k: v[i : i + 1] for k, v in inputs.items()}, target)
        torch.testing.assert_close(together.scores()[i], alone.scores()[0], **CLOSE)


def test_many_targets_of_one_forward() -> None:
    model, inputs = bert(), tokens()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    results = conserva.relevance(model, inputs, targets=[0, "positive", ["neutral", 0, 1]], rules="exact")
    assert len(calls) == 1
    for target, result in zip([0, "positive", ["neutral", 0, 1]], results, strict=True):
        alone = conserva.relevance(model, inputs, target, rules="exact")
        torch.testing.assert_close(result.scores(), alone.scores(), **CLOSE)
        torch.testing.assert_close(result.ledger.biases, alone.ledger.biases, **CLOSE)
        assert result.ledger.gap.abs().max() < 1e-5


def test_an_index_into_a_longer_output() -> None:
    from transformers import BertForMaskedLM

    model = shake(BertForMaskedLM(bert().config))
    result = conserva.relevance(model, tokens(), (2, 17))
    torch.testing.assert_close(result.output, model(**tokens()).logits[:, 2, 17].detach())


# Places


def test_embedding_block_is_the_papers_input() -> None:
    model, inputs = bert(), tokens()
    result = conserva.relevance(model, inputs, 1, rules="ah+ln", at="embeddings")
    by_name = conserva.relevance(model, inputs, 1, rules="ah+ln", at="bert.embeddings")
    torch.testing.assert_close(result.values["embeddings"], by_name.values["bert.embeddings"], **CLOSE)
    for ledger in (result.ledger, by_name.ledger):
        assert ledger.positions.abs().max() == 0  # they are inside the embeddings
    torch.testing.assert_close(result.ledger.gap, by_name.ledger.gap, **CLOSE)
    assert conserva.relevance(model, inputs, 1, rules="exact", at="embeddings").ledger.gap.abs().max() < 1e-5


def test_a_trace_through_the_layers_costs_no_second_pass() -> None:
    model, inputs = bert(), tokens()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    places = ["inputs", "bert.embeddings", "bert.encoder.layer.?"]
    result = conserva.relevance(model, inputs, 1, rules="exact", at=places)
    assert len(calls) == 1
    assert list(result.values) == ["input_ids", "bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1"]
    for place in list(result.values)[1:]:
        alone = conserva.relevance(model, inputs, 1, rules="exact", at=place)
        torch.testing.assert_close(result.values[place], alone.values[place], **CLOSE)
        assert alone.ledger.gap.abs().max() < 1e-5
    assert result.ledger.gap.abs().max() < 1e-5


def test_a_module_called_twice_is_read_twice() -> None:
    from transformers import AlbertConfig, AlbertForSequenceClassification

    config = AlbertConfig(
        vocab_size=99,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
    )
    model = shake(AlbertForSequenceClassification(config))
    result = conserva.relevance(
        model, tokens(), 1, at=["inputs", "albert.encoder.albert_layer_groups.0.albert_layers.0"]
    )
    assert len(result.values) == 3
    assert [name.endswith("#2") for name in result.values] == [False, False, True]


class Prompted(HandWritten):
    """Ids are copied and padded before they are looked up, and a prompt of the model's own is put in front."""

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.words

    def forward(self, input_ids: Tensor) -> Tensor:
        prompt = self.words(torch.full((len(input_ids), 2), 7))
        padded = F.pad(input_ids.clone(), (0, 1), value=3)
        x = torch.cat([prompt, self.words(padded)], 1)
        return self.out(self.norm(x + F.scaled_dot_product_attention(x, x, x)).mean(1))


def test_ids_that_the_model_copies_or_pads_are_inputs_and_its_own_prompt_is_not() -> None:
    model = shake(Prompted().double())
    result = conserva.relevance(model, {"input_ids": torch.randint(0, 50, (2, 4))}, 1, rules="exact")
    assert list(result.values) == ["input_ids"]
    assert result.scores().shape == (2, 4)
    assert result.ledger.positions.abs().min() > 1e-6
    assert result.ledger.gap.abs().max() < 1e-12


def test_ids_looked_up_in_two_tables_get_the_sum() -> None:
    class TwoTables(HandWritten):
        def __init__(self) -> None:
            super().__init__()
            self.more = torch.nn.Embedding(50, 12)

        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + self.out(self.more(ids).mean(1))

    result = conserva.relevance(shake(TwoTables().double()), torch.randint(0, 50, (2, 4)), 1, rules="exact")
    assert list(result.values) == ["ids", "ids#2"]
    torch.testing.assert_close(result.scores().sum(1), result.ledger.inputs)
    assert not torch.allclose(result.scores(), result.values["ids"].sum(-1))


# PyTorch's own Transformers


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("rules", RULE_SETS)
def test_transformer_encoder(activation: str, rules: str) -> None:
    model = shake(Classifier(activation=activation).double())
    ids = torch.randint(0, 50, (3, 6))
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True
    result = conserva.relevance(model, (ids, padding), 1, rules=rules)
    model.train()
    for module in model.modules():
        module.dropout = (
            0.0 if isinstance(getattr(module, "dropout", None), float) else getattr(module, "dropout", None)
        )
    model.eval()
    torch.testing.assert_close(result.output, model(ids, padding)[:, 1].detach(), rtol=1e-9, atol=1e-12)
    assert (result.scores()[1, 4:] == 0).all()
    if rules == "exact":
        assert result.ledger.gap.abs().max() < 1e-12
    for i in range(3):
        alone = conserva.relevance(model, (ids[i : i + 1], padding[i : i + 1]), 1, rules=rules)
        torch.testing.assert_close(result.scores()[i], alone.scores()[0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(result.ledger.biases[i], alone.ledger.biases[0], rtol=1e-9, atol=1e-12)


def test_time_first_transformer_encoder() -> None:
    model = shake(Classifier(batch_first=False).double())
    ids = torch.randint(0, 50, (6, 3))
    result = conserva.relevance(model, ids, 1, rules="exact", batch_dim=1)
    assert result.scores().shape == (6, 3)
    assert result.ledger.gap.abs().max() < 1e-12
    for i in range(3):
        alone = conserva.relevance(model, ids[:, i : i + 1], 1, rules="exact", batch_dim=1)
        torch.testing.assert_close(result.ledger.biases[i], alone.ledger.biases[0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(result.scores()[:, i], alone.scores()[:, 0], rtol=1e-9, atol=1e-12)


def test_encoder_decoder_splits_among_both_sets_of_tokens() -> None:
    model = shake(Translator().double())
    inputs = {"input_ids": torch.randint(0, 50, (2, 5)), "decoder_input_ids": torch.randint(0, 50, (2, 3))}
    result = conserva.relevance(model, inputs, 7, rules="exact")
    assert set(result.values) == {"input_ids", "decoder_input_ids"}
    assert result.ledger.gap.abs().max() < 1e-12
    torch.testing.assert_close(
        result.ledger.inputs, result.scores("input_ids").sum(1) + result.scores("decoder_input_ids").sum(1)
    )


def test_numbers_as_input() -> None:
    model = shake(torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True).double())
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    result = conserva.relevance(model, x, lambda y: y[:, 0, 0], rules="exact")
    assert not x.requires_grad
    assert result.values["src"].shape == x.shape
    assert result.ledger.gap.abs().max() < 1e-12


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 16, "vdim": 16}])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_multihead_attention_is_read_whole(options: dict, need_weights: bool, batched: bool) -> None:
    attention = shake(torch.nn.MultiheadAttention(16, 4, batch_first=True, **options).double())
    x = torch.randn(*([2] if batched else []), 5, 16, dtype=torch.float64)
    mask = torch.zeros(5, 5, dtype=torch.bool).triu_(1)
    expected, weights = attention(x, x, x, attn_mask=mask, need_weights=need_weights)
    live = x.clone().requires_grad_()
    with conserva.rules("exact") as context:
        out, seen = attention(live, live, live, attn_mask=mask, need_weights=need_weights)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)
    assert context.coverage.count("attention") == 1
    if need_weights:
        torch.testing.assert_close(seen, weights, rtol=1e-9, atol=1e-12)


def test_a_model_without_hidden_states_has_no_embedding_block() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
    with pytest.raises(conserva.Error, match="Sequential does not take output_hidden_states"):
        conserva.relevance(model, torch.tensor([[1, 2, 3]]), 0, rules="gi", at="embeddings")


def test_numbers_made_in_inference_mode_are_explained() -> None:
    model = bert()
    with torch.inference_mode():
        x = model.get_input_embeddings()(torch.randint(1, 90, (1, 5)))
        found = conserva.relevance(model, {"inputs_embeds": x}, 1)
    torch.testing.assert_close(found.scores(), conserva.relevance(model, {"inputs_embeds": x.clone()}, 1).scores())


def test_a_model_in_bfloat16_under_autocast() -> None:
    model, ids = bert().bfloat16(), {"input_ids": torch.randint(1, 90, (2, 5))}
    with torch.autocast("cpu", torch.bfloat16):
        found = conserva.relevance(model, ids, 1)
        expected = model(**ids).logits[:, 1]
    torch.testing.assert_close(found.output, expected.float(), rtol=1e-2, atol=1e-2)
