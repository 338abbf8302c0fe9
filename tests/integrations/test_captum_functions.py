"""captum: forward functions of all kinds, models without attention, and arguments that make no sense."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("captum", reason="captum is not installed")

from captum.attr import InputXGradient, LayerGradientXActivation

import conserva
from conserva.integrations.captum import ConservativeAttribution, LayerConservativeAttribution
from tiny import bert, shake, tokens

EXACT = {"rtol": 1e-12, "atol": 1e-12}
MODEL = bert().double()
IDS = tokens()["input_ids"]
X = MODEL.get_input_embeddings()(IDS).detach()
MODELS = {"by name": MODEL, "other": 3}
LIST = [MODEL]


def directly(target: Any = 1) -> Tensor:
    return conserva.relevance(MODEL, {"inputs_embeds": X}, target).values["inputs_embeds"]


def log_probability(output: Any) -> Tensor:
    return output.logits.log_softmax(-1)[:, 1]


# Where the model of a function is found: what follows it belongs to the target.


def in_a_comprehension(x: Tensor) -> Tensor:
    return torch.cat([MODEL(inputs_embeds=row[None]).logits for row in x]).log_softmax(-1)


def in_an_inner_function(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return MODEL(inputs_embeds=y).logits

    return inner(x).log_softmax(-1)


def decorated(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    @functools.wraps(function)
    def wrapper(x: Tensor) -> Tensor:
        return function(x).log_softmax(-1)

    return wrapper


@decorated
def of_a_decorator(x: Tensor) -> Tensor:
    return MODEL(inputs_embeds=x).logits


def of_an_argument(model: nn.Module, x: Tensor) -> Tensor:
    return model(inputs_embeds=x).logits.log_softmax(-1)


def of_a_default(x: Tensor, model: nn.Module = MODEL) -> Tensor:
    return model(inputs_embeds=x).logits.log_softmax(-1)


class Box:
    """Holds the model in places that no variable of a function refers to."""

    of_the_class = MODEL
    __slots__ = ("inner", "slot")

    def __init__(self, inner: Any = None) -> None:
        self.slot, self.inner = MODEL, inner

    def scores(self, x: Tensor) -> Tensor:
        return self.of_the_class(inputs_embeds=x).logits.log_softmax(-1)


BOX = Box(Box())
classifier = torch.compile(nn.Linear(2, 2), backend="eager")  # which has the name of a module of the model


@pytest.mark.parametrize(
    "function",
    [
        in_a_comprehension,
        in_an_inner_function,
        of_a_decorator,
        functools.partial(of_an_argument, MODEL),
        lambda x: MODELS["by name"](inputs_embeds=x).logits.log_softmax(-1),
        lambda x: LIST[0](inputs_embeds=x).logits.log_softmax(-1),
        of_a_default,
        BOX.scores,
        lambda x: BOX.inner.slot(inputs_embeds=x).logits.log_softmax(-1),
        functools.lru_cache(lambda x: MODEL(inputs_embeds=x).logits.log_softmax(-1)),
        lambda x: MODEL.classifier(MODEL.bert(inputs_embeds=x).pooler_output).log_softmax(-1),
    ],
    ids=[
        "comprehension",
        "inner function",
        "decorator",
        "partial",
        "dictionary",
        "list",
        "default",
        "class attribute",
        "attribute of an attribute",
        "cache",
        "parts of a model",
    ],
)
def test_the_model_of_a_function_is_found(function: Callable[..., Any]) -> None:
    found = ConservativeAttribution(function).attribute(X, 1)
    torch.testing.assert_close(found, directly(log_probability), **EXACT)


def test_a_variable_without_a_value_yet_is_passed_over() -> None:
    def scores(x: Tensor) -> Tensor:
        return model(inputs_embeds=x).logits

    method = ConservativeAttribution(scores)
    with pytest.raises(NameError):
        method.attribute(X, 1)
    model = MODEL
    torch.testing.assert_close(method.attribute(X, 1), directly(), **EXACT)


def test_names_of_modules_are_no_patterns() -> None:
    models = nn.ModuleDict({"a*[0]": MODEL})
    layer = MODEL.bert.encoder.layer[0]
    method = LayerConservativeAttribution(lambda ids: models["a*[0]"](ids).logits, layer)
    expected = conserva.relevance(MODEL, IDS, 1, at="bert.encoder.layer.0").values["bert.encoder.layer.0"]
    torch.testing.assert_close(method.attribute(IDS, 1), expected, **EXACT)


# Arguments.


@pytest.mark.parametrize("layer", [[], (), None, "bert", [None]], ids=str)
def test_layers_that_are_none(layer: Any) -> None:
    with pytest.raises(conserva.Error, match=r"^layer=.*: give a module of the model"):
        LayerConservativeAttribution(lambda ids: MODEL(ids).logits, layer).attribute(IDS, 1)


def test_a_tuple_of_layers_and_a_layer_twice() -> None:
    first, second = MODEL.bert.encoder.layer[:2]
    found = LayerConservativeAttribution(lambda ids: MODEL(ids).logits, (first, second, first)).attribute(IDS, 1)
    assert len(found) == 3
    torch.testing.assert_close(found[0], found[2], **EXACT)


class Parts(nn.Module):
    """Returns several tensors, as a tuple, a list or a named tuple."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        super().__init__()
        self.kind, self.model = kind, MODEL

    def forward(self, ids: Tensor) -> Any:
        x = MODEL.get_input_embeddings()(ids)
        return self.kind([x / 4, ids, x * 0.75])


Pair = collections.namedtuple("Pair", ["first", "ids", "second"])


@pytest.mark.parametrize("kind", [tuple, list, lambda parts: Pair(*parts)], ids=["tuple", "list", "named tuple"])
def test_of_a_layer_that_returns_several_tensors_each_is_attributed(kind: Callable[..., Any]) -> None:
    parts = Parts(kind)

    def function(ids: Tensor) -> Tensor:
        first, _, second = parts(ids)
        return MODEL(inputs_embeds=first + second).logits

    for layers in (parts, [parts, MODEL.bert.encoder.layer[0]]):
        found = LayerConservativeAttribution(function, layers).attribute(IDS, 1)
        first, second = found if layers is parts else found[0]
        whole = conserva.relevance(MODEL, IDS, 1)
        torch.testing.assert_close(first, whole.values["input_ids"] / 4, **EXACT)
        torch.testing.assert_close(second, whole.values["input_ids"] * 0.75, **EXACT)
    method = LayerConservativeAttribution(function, parts)
    found, delta = method.attribute(IDS, 1, return_convergence_delta=True)
    torch.testing.assert_close(delta, whole.ledger.inputs - whole.output, **EXACT)
    torch.testing.assert_close(method.compute_convergence_delta(found, None, IDS, 1), delta, **EXACT)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (3, "forward_func=3 cannot be called"),
        (
            lambda x: MODEL(inputs_embeds=x).logits.argmax(-1, keepdim=True),
            "returned torch.int64: there is no gradient",
        ),
        (lambda x: MODEL(inputs_embeds=x).logits > 0, "returned torch.bool: there is no"),
    ],
)
def test_functions_without_scores(function: Any, message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        ConservativeAttribution(function).attribute(X, 0)


@pytest.mark.parametrize(
    "others",
    [{"attention_mask": torch.ones_like(IDS)}, [torch.ones_like(IDS)]],
    ids=["dictionary", "list"],
)
def test_an_additional_argument_of_another_type(others: Any) -> None:
    def scores(x: Tensor, given: Any) -> Tensor:
        mask = given["attention_mask"] if isinstance(given, dict) else given[0]
        return MODEL(inputs_embeds=x, attention_mask=mask).logits

    torch.testing.assert_close(ConservativeAttribution(scores).attribute(X, 1, others), directly(), **EXACT)


def test_ids_as_an_additional_argument_are_constants() -> None:
    def scores(x: Tensor, ids: Tensor) -> Tensor:
        return MODEL(inputs_embeds=x + MODEL.get_input_embeddings()(ids)).logits

    found, delta = ConservativeAttribution(scores).attribute(X, 1, IDS, return_convergence_delta=True)
    torch.testing.assert_close(found.sum((1, 2)) - delta, scores(X, IDS)[:, 1].detach(), **EXACT)


@pytest.mark.parametrize("given", ["leaf", "computed", "inference"])
def test_inputs_of_every_origin(given: str) -> None:
    leaf = X.clone().requires_grad_()
    with torch.inference_mode():
        inference = X.clone()
    x = {"leaf": leaf, "computed": leaf * 1, "inference": inference}[given]
    method = ConservativeAttribution(lambda x: MODEL(inputs_embeds=x).logits)
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with context():
            torch.testing.assert_close(method.attribute(x, 1), directly(), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision(dtype: torch.dtype) -> None:
    model, x = bert().to(dtype), X.to(dtype)
    method = ConservativeAttribution(lambda x: model(inputs_embeds=x).logits)
    found, delta = method.attribute(x, 1, return_convergence_delta=True)
    expected = conserva.relevance(model, {"inputs_embeds": x}, 1)
    torch.testing.assert_close(found, expected.values["inputs_embeds"], **EXACT)
    ledger = expected.ledger
    torch.testing.assert_close(delta, -(ledger.positions + ledger.biases + ledger.gap), **EXACT)
    assert found.dtype == delta.dtype == torch.float32
    torch.testing.assert_close(method.compute_convergence_delta(found, None, x, 1), delta, rtol=0, atol=1e-5)


# Models without attention.


def toy() -> nn.Module:
    return shake(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))).double()


def test_models_without_attention_have_a_rule() -> None:
    model, x = toy(), torch.rand(2, 3, dtype=torch.float64)
    with pytest.raises(conserva.Error, match=r"^Sequential has no attention .*rules\('gi', attention='refuse'\)"):
        ConservativeAttribution(model, "gi").attribute(x, 0)
    plain = InputXGradient(model).attribute(x.clone().requires_grad_(), 0).detach()
    found = ConservativeAttribution(model, conserva.rules("gi", attention="refuse")).attribute(x, 0)
    torch.testing.assert_close(found, plain, **EXACT)
    rules = conserva.rules("exact", attention="refuse")
    found, delta = ConservativeAttribution(model, rules).attribute(x, 0, return_convergence_delta=True)
    expected = conserva.relevance(model, x, 0, rules=rules)
    torch.testing.assert_close(found, next(iter(expected.values.values())), **EXACT)
    torch.testing.assert_close(delta, -(expected.ledger.positions + expected.ledger.biases), **EXACT)
    layer = model[1]
    theirs = LayerGradientXActivation(model, layer).attribute(x, 0).detach()
    ours = LayerConservativeAttribution(model, layer, conserva.rules("gi", attention="refuse")).attribute(x, 0)
    torch.testing.assert_close(ours, theirs, **EXACT)


def test_a_head_on_embeddings_that_a_transformer_computed() -> None:
    with torch.no_grad():
        states = MODEL.bert(IDS).last_hidden_state[:, 0]
    head = shake(nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 2))).double()
    rules = conserva.rules("exact", attention="refuse")
    found, delta = ConservativeAttribution(head, rules).attribute(states, [0, 1, 1], return_convergence_delta=True)
    torch.testing.assert_close(found.sum(1) - delta, head(states)[range(3), [0, 1, 1]].detach(), **EXACT)
