"""captum: its own tools run our algorithms, which are `conserva.relevance`, and refuse what it refuses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("captum", reason="captum is not installed")

from captum.attr import InputXGradient, LayerGradientXActivation, LLMGradientAttribution, NoiseTunnel, TextTokenInput
from captum.metrics import infidelity, sensitivity_max

import conserva
from conserva.integrations.captum import ConservativeAttribution, LayerConservativeAttribution
from language import byte_tokenizer, language_model
from pages_of_code import run_page
from tiny import bert, tokens

EXACT = {"rtol": 1e-12, "atol": 1e-12}
RULES = ("gi", "ah", "ln", "ah+ln", "exact", "attnlrp")
MODEL = bert().double()
IDS = tokens()["input_ids"]
MASK = torch.ones_like(IDS)
MASK[0, 5:] = 0
X = MODEL.get_input_embeddings()(IDS).detach()


def logits(x: Tensor, mask: Any = None, scale: Any = 1.0) -> Tensor:
    return MODEL(inputs_embeds=x, attention_mask=mask).logits * scale


def of_ids(ids: Tensor, mask: Any = None) -> Tensor:
    return MODEL(ids, attention_mask=mask).logits


def directly(target: Any, rules: Any = "exact", mask: Tensor | None = MASK, x: Tensor = X) -> Any:
    return conserva.relevance(MODEL, {"inputs_embeds": x, "attention_mask": mask}, target, rules=rules)


class Encoder(nn.Module):
    """A model of features that does not come from Hugging Face, optionally with time before batch inside."""

    def __init__(self, batch_first: bool = True, activation: Any = "gelu") -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, activation=activation, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(8, 3)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        return self.out(self.encoder(x).mean(1 if self.batch_first else 0))


# Attributions are relevance.


@pytest.mark.parametrize("rules", RULES)
def test_attributions_are_relevance_and_the_delta_is_the_rest_of_the_ledger(rules: str) -> None:
    method = ConservativeAttribution(logits, rules)
    found, delta = method.attribute(X, 1, MASK, return_convergence_delta=True)
    expected = directly(1, rules)
    torch.testing.assert_close(found, expected.values["inputs_embeds"], **EXACT)
    ledger = expected.ledger
    torch.testing.assert_close(delta, -(ledger.positions + ledger.biases + ledger.gap), **EXACT)
    torch.testing.assert_close(delta, found.sum((1, 2)) - logits(X, MASK)[:, 1].detach(), **EXACT)
    torch.testing.assert_close(method.compute_convergence_delta(found, None, X, 1, MASK), delta, **EXACT)
    zero = method.compute_convergence_delta(found, torch.zeros_like(X), X, 1, MASK)
    torch.testing.assert_close(zero, delta + logits(torch.zeros_like(X), MASK)[:, 1].detach(), **EXACT)
    assert not found[0, 5:].any()  # padding
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("target", "ours"),
    [
        (2, 2),
        (-1, 2),
        ((1,), 1),
        (torch.tensor(1), 1),
        (torch.tensor([1]), 1),
        (torch.tensor([2, 0, 1]), [2, 0, 1]),
        ([2, 0, 1], [2, 0, 1]),
        ([(2,), (0,), (1,)], [2, 0, 1]),
    ],
    ids=str,
)
def test_targets_are_those_of_captum(target: Any, ours: Any) -> None:
    found = ConservativeAttribution(logits).attribute(X, target, MASK)
    torch.testing.assert_close(found, directly(ours).values["inputs_embeds"], **EXACT)
    plain = InputXGradient(logits).attribute(X.clone().requires_grad_(), target, MASK).detach()
    torch.testing.assert_close(ConservativeAttribution(logits, "gi").attribute(X, target, MASK), plain, **EXACT)


def test_targets_into_outputs_with_more_dimensions() -> None:
    def pairs(x: Tensor) -> Tensor:
        return torch.stack([logits(x), 2 * logits(x)], -1)

    found = ConservativeAttribution(pairs).attribute(X, [(2, 0), (0, 1), (1, 1)])
    expected = directly([2, 0, 1], mask=None).values["inputs_embeds"]
    torch.testing.assert_close(found, expected * torch.tensor([1, 2, 2])[:, None, None], **EXACT)
    torch.testing.assert_close(
        ConservativeAttribution(pairs).attribute(X, (2, 1)), 2 * directly(2, mask=None).values["inputs_embeds"], **EXACT
    )


def test_no_target_for_one_number_per_sample() -> None:
    expected = directly(1, mask=None).values["inputs_embeds"]
    for function in (lambda x: logits(x)[:, 1], lambda x: logits(x)[:, 1:2]):
        torch.testing.assert_close(ConservativeAttribution(function).attribute(X), expected, **EXACT)


def test_a_tuple_of_inputs_gives_a_tuple() -> None:
    method = ConservativeAttribution(lambda a, b, mask: logits(torch.cat([a, b], 1), mask))
    inputs = X[:, :3].clone(), X[:, 3:].clone()
    found, delta = method.attribute(inputs, 1, MASK, return_convergence_delta=True)
    assert isinstance(found, tuple)
    expected = directly(1)
    torch.testing.assert_close(torch.cat(found, 1), expected.values["inputs_embeds"], **EXACT)
    torch.testing.assert_close(delta, expected.ledger.inputs - expected.output, **EXACT)
    torch.testing.assert_close(method.compute_convergence_delta(found, None, inputs, 1, MASK), delta, **EXACT)
    alone = ConservativeAttribution(logits).attribute((X,), 1)
    assert isinstance(alone, tuple)
    assert len(alone) == 1


def test_an_input_that_has_no_effect_gets_zero() -> None:
    a, b = ConservativeAttribution(lambda a, b: logits(a)).attribute((X, torch.ones(3, 2, dtype=X.dtype)), 1)
    assert a.any()
    assert not b.any()


@pytest.mark.parametrize("others", [None, (None,), (MASK, 1.0), (None, torch.ones(3, 1, dtype=X.dtype))], ids=str)
def test_additional_arguments_are_constants(others: Any) -> None:
    mask = others[0] if others else None
    found = ConservativeAttribution(logits).attribute(X, 1, others)
    torch.testing.assert_close(found, directly(1, mask=mask).values["inputs_embeds"], **EXACT)


def test_samples_that_cannot_be_batched_keep_their_own_targets_and_arguments() -> None:
    model, x = Encoder(batch_first=False).double().eval(), torch.randn(3, 6, 8, dtype=torch.float64)
    method = ConservativeAttribution(lambda x, scale: model(x * scale))
    scale = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)[:, None, None]
    found, delta = method.attribute(x, [2, 0, 1], scale, return_convergence_delta=True)
    for i, target in enumerate([2, 0, 1]):
        one, rest = method.attribute(x[i : i + 1], target, scale[i : i + 1], return_convergence_delta=True)
        torch.testing.assert_close(found[i : i + 1], one, **EXACT)
        torch.testing.assert_close(delta[i : i + 1], rest, **EXACT)


class Holder:
    """Callables of other kinds than functions."""

    def __init__(self) -> None:
        self.model = MODEL

    def __call__(self, x: Tensor) -> Tensor:
        return self.model(inputs_embeds=x).logits

    def method(self, x: Tensor) -> Tensor:
        return self(x).log_softmax(-1)


class Wrapped(nn.Module):
    """A model as a module that returns a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.forward_inside = MODEL

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_inside(inputs_embeds=x).logits


@pytest.mark.parametrize(
    "function",
    [logits, lambda x: logits(x), functools.partial(logits, mask=None), Holder(), Wrapped(), Wrapped().forward],
    ids=["function", "lambda", "partial", "object", "module", "method of a module"],
)
def test_every_kind_of_forward_function(function: Callable[..., Any]) -> None:
    found = ConservativeAttribution(function).attribute(X, 1)
    torch.testing.assert_close(found, directly(1, mask=None).values["inputs_embeds"], **EXACT)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: MODEL(inputs_embeds=x).logits.log_softmax(-1),
        lambda x: logits(x).log_softmax(-1),
        Holder().method,
    ],
    ids=["function", "function of a function", "method"],
)
def test_a_function_may_end_in_a_log_probability(function: Callable[..., Any]) -> None:
    found, delta = ConservativeAttribution(function).attribute(X, 1, return_convergence_delta=True)
    expected = directly(lambda output: output.logits.log_softmax(-1)[:, 1], mask=None)
    torch.testing.assert_close(found, expected.values["inputs_embeds"], **EXACT)
    torch.testing.assert_close(delta, expected.ledger.inputs - expected.output, **EXACT)


def test_own_rules() -> None:
    rules = conserva.rules("exact", gamma=0.1)
    found = ConservativeAttribution(logits, rules).attribute(X, 1, MASK)
    torch.testing.assert_close(found, directly(1, rules).values["inputs_embeds"], **EXACT)


def test_the_model_and_the_inputs_are_left_as_they_were() -> None:
    x = X.clone().requires_grad_()
    with torch.no_grad():
        ConservativeAttribution(logits).attribute(x, 1)
        LayerConservativeAttribution(of_ids, MODEL.bert.encoder.layer[0]).attribute(IDS, 1)
    assert x.requires_grad
    assert x.grad is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in MODEL.modules())


# What is refused.


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


def entropy(x: Tensor) -> Tensor:
    scores = logits(x)
    return -(scores.softmax(-1) * scores.log_softmax(-1)).sum(-1)


REFUSED: list[tuple[Callable[..., Any], Any, Any, str]] = [
    (of_ids, IDS, 1, r"inputs\[0\] is torch.int64.*LayerConservativeAttribution"),
    (logits, (X, IDS), 1, r"inputs\[1\] is torch.int64"),
    (logits, [X], 1, "inputs is list"),
    (logits, (), 1, "a tuple of nothing"),
    (logits, X[:0], 1, "must not be empty"),
    (logits, torch.tensor(1.0), [1], "target has 1 entries for 0"),
    (logits, X, 3, "target=3 does not fit an output of shape"),
    (logits, X, (0, 0), "does not fit"),
    (logits, X, "positive", "target='positive' does not fit"),
    (logits, X, torch.tensor([0.5]), "does not fit"),
    (logits, X, torch.tensor([0, 1]), "does not fit"),
    (logits, X, [1], "target has 1 entries for 3"),
    (logits, X, [(0,), (0, 1), (2,)], "index tuples of one length"),
    (logits, X, None, "target=None selects"),
    (lambda x: MODEL(inputs_embeds=x), X, 1, "forward_func returned SequenceClassifierOutput"),
    (lambda x: logits(x).sum(), X, None, "selects"),
    (lambda x: logits(x)[:1], X, 1, "for 3 sample"),
    (lambda x: logits(x).softmax(-1), X, 1, "explain the logits"),
    (entropy, X, None, "LogSoftmax"),
    (lambda x: Wrapped()(x).log_softmax(-1), X, 1, "LogSoftmax"),
    (lambda x: logits(_Twice.apply(x)), X, 1, "_Twice is a foreign autograd function"),
    (lambda x: logits(x.detach()), X, 1, "no gradient flows"),
    (nn.Linear(32, 3).double(), X[:, 0], 1, "no attention"),
]


@pytest.mark.parametrize(("function", "inputs", "target", "message"), REFUSED)
def test_what_is_refused(function: Callable[..., Any], inputs: Any, target: Any, message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        ConservativeAttribution(function).attribute(inputs, target)


def test_a_model_in_training_mode_is_refused() -> None:
    model = bert().double().train()
    with pytest.raises(conserva.Error, match=r"model.eval\(\)"):
        ConservativeAttribution(lambda x: model(inputs_embeds=x).logits).attribute(X, 1)


def test_messages_name_modules_by_the_class_of_the_model() -> None:
    model = Encoder(activation=lambda x: _Twice.apply(x).relu()).double().eval()
    with pytest.raises(conserva.Error, match=r"module 'Encoder.encoder.layers.\d'"):
        ConservativeAttribution(lambda x: model(x)).attribute(X[..., :8], 1)


def test_futures_and_rules_that_do_not_exist() -> None:
    with pytest.raises(NotImplementedError):
        ConservativeAttribution(logits).attribute_future()
    with pytest.raises(conserva.Error, match="Did you mean 'exact'"):
        ConservativeAttribution(logits, "exakt")


# Layers.


@pytest.mark.parametrize("rules", RULES)
def test_layers(rules: str) -> None:
    embeddings, block = MODEL.get_input_embeddings(), MODEL.bert.encoder.layer[0]
    method = LayerConservativeAttribution(of_ids, embeddings, rules)
    found, delta = method.attribute(IDS, [2, 0, 1], MASK, return_convergence_delta=True)
    expected = conserva.relevance(MODEL, {"input_ids": IDS, "attention_mask": MASK}, [2, 0, 1], rules=rules)
    torch.testing.assert_close(found, expected.values["input_ids"], **EXACT)
    torch.testing.assert_close(delta, expected.ledger.inputs - expected.output, **EXACT)
    torch.testing.assert_close(method.compute_convergence_delta(found, None, IDS, [2, 0, 1], MASK), delta, **EXACT)
    several = LayerConservativeAttribution(of_ids, [embeddings, block], rules).attribute(IDS, [2, 0, 1], MASK)
    at = ["bert.embeddings.word_embeddings", "bert.encoder.layer.0"]
    inside = conserva.relevance(MODEL, {"input_ids": IDS, "attention_mask": MASK}, [2, 0, 1], rules=rules, at=at).values
    for layer, name in zip(several, at, strict=True):
        torch.testing.assert_close(layer, inside[name], **EXACT)


def test_layers_equal_captum_under_the_plain_gradient() -> None:
    for layer in (MODEL.get_input_embeddings(), MODEL.bert.encoder.layer[1]):
        theirs = LayerGradientXActivation(of_ids, layer).attribute(IDS, 1, MASK).detach()
        found = LayerConservativeAttribution(of_ids, layer, "gi").attribute(IDS, 1, MASK)
        torch.testing.assert_close(found, theirs, **EXACT)


def test_a_layer_that_no_variable_holds_is_found() -> None:
    found = LayerConservativeAttribution(lambda ids: Holder().model(ids).logits, MODEL.bert.encoder.layer[0])
    expected = conserva.relevance(MODEL, IDS, 1, at="bert.encoder.layer.0").values["bert.encoder.layer.0"]
    torch.testing.assert_close(found.attribute(IDS, 1), expected, **EXACT)


def test_layers_that_are_refused() -> None:
    embeddings = MODEL.get_input_embeddings()
    for function, layer, settings, message in (
        (of_ids, nn.Linear(2, 2), {}, "called 0 times"),
        (
            lambda ids: of_ids(ids) + of_ids(ids),
            embeddings,
            {},
            "'BertForSequenceClassification.bert.embeddings.word_embeddings' is called 2",
        ),
        (of_ids, embeddings, {"attribute_to_layer_input": True}, "attribute_to_layer_input"),
        (of_ids, [embeddings], {"return_convergence_delta": True}, "Give one layer"),
    ):
        with pytest.raises(conserva.Error, match=message):
            LayerConservativeAttribution(function, layer).attribute(IDS, 1, **settings)


# captum's tools.


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_language_models_by_captum_are_generations_by_conserva(kind: str) -> None:
    model, tokenizer, text = language_model(kind), byte_tokenizer(), "The capital of France"
    method = LayerConservativeAttribution(model, model.get_input_embeddings())
    written = tokenizer(" is Paris", add_special_tokens=False, return_tensors="pt")["input_ids"][0]
    result = LLMGradientAttribution(method, tokenizer).attribute(TextTokenInput(text, tokenizer), target=written)
    task = conserva.Causal(model, tokenizer, name=kind)
    ours = conserva.explain_generation(task, text, continuation=" is Paris", score="log-probability")
    rows = torch.tensor(ours.matrix(), dtype=torch.float64)[:, : ours.start]
    assert result.input_tokens == ["<begin>", "The", "Ġcapital", "Ġof", "ĠFrance"]
    torch.testing.assert_close(result.token_attr, rows, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(result.seq_attr, rows.sum(0), rtol=1e-6, atol=1e-6)


def test_noise_tunnel() -> None:
    method = ConservativeAttribution(logits)
    expected, rest = method.attribute(X, [2, 0, 1], MASK, return_convergence_delta=True)
    settings: dict[str, Any] = {"target": [2, 0, 1], "additional_forward_args": MASK, "nt_samples": 3}
    found, delta = NoiseTunnel(method).attribute(X, stdevs=0.0, return_convergence_delta=True, **settings)
    torch.testing.assert_close(found, expected, **EXACT)
    torch.testing.assert_close(delta, rest.repeat_interleave(3), **EXACT)
    both = []
    for each in (ConservativeAttribution(logits, "gi"), InputXGradient(logits)):
        torch.manual_seed(1)
        both.append(NoiseTunnel(each).attribute(X, nt_type="vargrad", stdevs=0.1, **settings).detach())
    torch.testing.assert_close(*both, **EXACT)
    layer = LayerConservativeAttribution(lambda x: logits(x), MODEL.bert.encoder.layer[0])
    at = conserva.relevance(MODEL, {"inputs_embeds": X}, 1, at="bert.encoder.layer.0").values["bert.encoder.layer.0"]
    torch.testing.assert_close(NoiseTunnel(layer).attribute(X, stdevs=0.0, target=1, nt_samples=2), at, **EXACT)


def test_metrics() -> None:
    method, shift = ConservativeAttribution(logits), torch.full_like(X, 0.01)

    def perturb(x: Tensor) -> tuple[Tensor, Tensor]:
        return shift.repeat(len(x) // 3, 1, 1), x - 0.01

    found = method.attribute(X, 1)
    lost = (logits(X) - logits(X - 0.01))[:, 1].detach()
    measured = infidelity(logits, perturb, X, found, target=1, n_perturb_samples=2)
    torch.testing.assert_close(measured, ((found * 0.01).sum((1, 2)) - lost) ** 2)
    still = sensitivity_max(method.attribute, X, perturb_radius=0.0, n_perturb_samples=1, target=1)
    torch.testing.assert_close(still, torch.zeros_like(still))
    assert (sensitivity_max(method.attribute, X, n_perturb_samples=1, target=1) > 0).all()


def test_the_page_shows_what_its_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run_page(Path(__file__).parents[2] / "docs" / "doors" / "captum.md", capsys)
