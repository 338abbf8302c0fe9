"""Quantus: its metrics call relevance as their `explain_func`, on embedded texts and on images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("quantus", reason="quantus is not installed")

import quantus

import conserva
import tiny_heads
from conserva.integrations.quantus import ArrayModel, explain_func
from doc_pages import shown_and_printed, wrong_examples
from tiny import shake
from tiny_images import vit

TEXTS = ["a joy.", "not much of anything.", "how dull."]
CLOSE = {"rtol": 0, "atol": 1e-12}


class Linear(nn.Module):
    """A linear model without bias: its attention does not depend on the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, 2, bias=False, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.double().flatten(1)[:, :, None]
        weights = (0 * tokens @ tokens.transpose(1, 2) + torch.eye(tokens.shape[1]).double()).softmax(-1)
        return self.out((weights @ tokens)[:, :, 0])


class Case:
    """A model, a batch and its targets, as a Quantus metric takes them."""

    def __init__(self, network: nn.Module, model: ArrayModel, x: np.ndarray, inputs: dict[str, Any]) -> None:
        self.network, self.model, self.x, self.inputs = network, model, x, inputs
        self.y = np.arange(len(x)) % 2
        self.features = x.shape[2:] if x.ndim == 4 else x.shape[1:2]
        self.step = x.shape[2] if x.ndim == 3 else 32

    def __call__(self, metric: Any, **arguments: Any) -> Any:
        return metric(
            self.model, self.x, self.y, channel_first=True, explain_func=explain_func,
            **{"explain_func_kwargs": {}, **arguments},
        )  # fmt: skip

    def relevance(self, rules: str = "exact") -> np.ndarray:
        result = conserva.relevance(self.network, self.inputs, self.y.tolist(), rules=rules)
        return next(iter(result.values.values())).numpy()


def text_case() -> Case:
    network = tiny_heads.model("bert", "AutoModelForSequenceClassification")
    inputs = tiny_heads.tokenizer()(TEXTS, padding=True, return_tensors="pt")
    assert 0 in inputs["attention_mask"]
    model = ArrayModel(network, attention_mask=inputs["attention_mask"])
    return Case(network, model, model.embedded(inputs["input_ids"]), dict(inputs))


def image_case() -> Case:
    network = vit()
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return Case(network, ArrayModel(network), pixels.numpy(), {"pixel_values": pixels})


CASES = {"text": text_case, "image": image_case}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


@pytest.fixture(scope="module")
def text() -> Case:
    return text_case()


# explain_func is conserva.relevance.


@pytest.mark.parametrize("rules", ["exact", "ah+ln"])
def test_it_is_relevance(case: Case, rules: str) -> None:
    every = explain_func(case.model, case.x, case.y, rules=rules, reduce_axes=())
    assert every.shape == case.x.shape
    np.testing.assert_allclose(every, case.relevance(rules), **CLOSE)


def test_the_numbers_of_a_feature_are_summed(case: Case) -> None:
    axis = 2 if case.x.ndim == 3 else 1
    found = explain_func(case.model, case.x, case.y)
    np.testing.assert_allclose(found, case.relevance().sum(axis, keepdims=True), **CLOSE)
    assert found.ndim == case.x.ndim
    np.testing.assert_allclose(explain_func(case.model, case.x, case.y, reduce_axes=(axis,)), found, **CLOSE)


def test_a_rule_set_of_ones_own(case: Case) -> None:
    rules = conserva.rules("exact", gamma=0.5)
    found = [explain_func(case.model, case.x, case.y, rules=rules) for _ in range(2)]
    np.testing.assert_array_equal(*found)
    assert not np.allclose(found[0], explain_func(case.model, case.x, case.y))


def test_padding_gets_nothing(text: Case) -> None:
    found = explain_func(text.model, text.x, text.y)
    padding = text.inputs["attention_mask"].numpy() == 0
    assert (found[padding] == 0).all()
    assert (found[~padding] != 0).all()


def test_arrays_of_features_are_kept() -> None:
    network = Linear(4).eval()
    x = np.random.default_rng(0).normal(size=(3, 4))
    found = explain_func(network, x, [0, 1, 0])
    mixed = network.out.weight @ (torch.eye(4, dtype=torch.float64)).softmax(-1)
    np.testing.assert_allclose(found, x * mixed.detach().numpy()[[0, 1, 0]], **CLOSE)


@pytest.mark.parametrize("as_given", [np.array, list, torch.tensor])
def test_targets_of_any_kind(case: Case, as_given: Any) -> None:
    expected = explain_func(case.model, case.x, case.y)
    np.testing.assert_array_equal(explain_func(case.model, case.x, as_given(case.y.tolist())), expected)


def test_float32_inputs_of_a_float64_model(case: Case) -> None:
    found = explain_func(case.model, case.x.astype(np.float32), case.y)
    np.testing.assert_allclose(found, explain_func(case.model, case.x, case.y), rtol=0, atol=1e-4)


# Quantus's metrics.


def test_sparseness_and_complexity(case: Case) -> None:
    scores = np.abs(explain_func(case.model, case.x, case.y)).reshape(len(case.x), -1)
    shares = scores / scores.sum(1, keepdims=True)
    entropy = [-(row[row > 0] * np.log(row[row > 0])).sum() for row in shares]
    assert case(quantus.Complexity(disable_warnings=True)) == pytest.approx(entropy, abs=1e-6)
    size = scores.shape[1]
    gini = [
        2 * (np.arange(1, size + 1) * np.sort(row)).sum() / (size * row.sum()) - (size + 1) / size for row in scores
    ]
    assert case(quantus.Sparseness(disable_warnings=True)) == pytest.approx(gini, abs=1e-6)


def test_pixel_flipping_removes_whole_features_in_order(text: Case) -> None:
    width = text.step
    metric = quantus.PixelFlipping(features_in_step=width, perturb_baseline=0.0, disable_warnings=True)
    curves = text(metric, softmax=True)
    order = np.argsort(-text.relevance().sum(-1), axis=1, kind="stable")
    for row, curve in enumerate(curves):
        x = text.x.copy()
        for step, token in enumerate(order[row]):
            x[row, token] = 0
            logits = text.network(
                inputs_embeds=torch.from_numpy(x).float().double(), attention_mask=text.inputs["attention_mask"]
            ).logits
            probability = logits.softmax(-1)[row, text.y[row]].item()
            assert curve[step] == pytest.approx(probability, abs=1e-6)


def test_pixel_flipping_of_an_image() -> None:
    case = image_case()
    metric = quantus.PixelFlipping(features_in_step=256, perturb_baseline="black", disable_warnings=True)
    curves = np.array(case(metric))
    assert curves.shape == (3, case.x[0].size // 256)
    assert np.isfinite(curves).all()


def test_faithfulness_correlation(case: Case) -> None:
    metric = quantus.FaithfulnessCorrelation(
        nr_runs=12, subset_size=4, perturb_baseline=0.0, return_aggregate=False, disable_warnings=True
    )
    np.random.seed(0)
    found = case(metric, explain_func_kwargs={"reduce_axes": ()})
    assert len(found) == len(case.x)
    assert np.isfinite(found).all()


def test_faithfulness_correlation_of_a_linear_model_is_one() -> None:
    """Of a linear model without bias, relevance is the effect of removing."""
    network = Linear(12).eval()
    x = np.random.default_rng(0).normal(size=(3, 1, 12)).astype(np.float32)
    metric = quantus.FaithfulnessCorrelation(
        nr_runs=20, subset_size=3, perturb_baseline=0.0, return_aggregate=False, disable_warnings=True
    )
    found = metric(
        network, x, np.array([0, 1, 0]), channel_first=True, explain_func=explain_func,
        explain_func_kwargs={"reduce_axes": ()},
    )  # fmt: skip
    assert found == pytest.approx([1, 1, 1], abs=1e-4)


def test_max_sensitivity(case: Case) -> None:
    metric = quantus.MaxSensitivity(nr_samples=2, lower_bound=0.02, disable_warnings=True)
    found = case(metric)
    assert len(found) == len(case.x)
    assert all(0 < value < np.inf for value in found)


def test_model_parameter_randomisation(case: Case) -> None:
    before = tiny_heads.state_of(case.network)
    metric = quantus.MPRT(skip_layers=True, disable_warnings=True)
    found = case(metric)
    assert found["original"] == pytest.approx([1] * len(case.x))
    (last,) = (values for name, values in found.items() if name != "original")
    assert np.mean(last) < 0.95
    assert tiny_heads.is_as_it_was(case.network, before)


def test_attributions_given_beforehand(case: Case) -> None:
    a = explain_func(case.model, case.x, case.y)
    metric = quantus.Complexity(disable_warnings=True)
    given = metric(case.model, case.x, case.y, a_batch=a, channel_first=True)
    assert given == pytest.approx(case(quantus.Complexity(disable_warnings=True)), abs=1e-6)


def test_quantuss_evaluation_names_rule_sets(case: Case) -> None:
    metrics = {"complexity": quantus.Complexity(disable_warnings=True)}
    settings = {"metrics": metrics, "model": case.model, "x_batch": case.x, "y_batch": case.y, "agg_func": np.mean}
    expected = {
        rules: np.mean(case(quantus.Complexity(disable_warnings=True), explain_func_kwargs={"rules": rules}))
        for rules in ("exact", "ah+ln")
    }
    assert expected["exact"] != pytest.approx(expected["ah+ln"], rel=1e-6)
    found = quantus.evaluate(xai_methods=dict.fromkeys(expected, explain_func), explain_func_kwargs={}, **settings)
    for rules, mean in expected.items():
        assert found[rules]["complexity"] == pytest.approx(mean, rel=1e-6)
    named = quantus.evaluate(
        xai_methods={"of the paper": explain_func}, explain_func_kwargs={"rules": "ah+ln"}, **settings
    )
    assert named["of the paper"]["complexity"] == pytest.approx(expected["ah+ln"], rel=1e-6)
    with pytest.raises(conserva.Error, match=r"method='Saliency' is not a rule set: .*'rules'"):
        case(quantus.Complexity(disable_warnings=True), explain_func_kwargs={"method": "Saliency"})


def test_batches_of_other_sizes() -> None:
    case = image_case()
    alone = case(quantus.Complexity(disable_warnings=True))
    for size in (1, 2):
        assert case(quantus.Complexity(disable_warnings=True), batch_size=size) == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lower_precision(dtype: torch.dtype) -> None:
    network = tiny_heads.model("bert", "AutoModelForSequenceClassification").to(dtype)
    ids = tiny_heads.tokenizer()(TEXTS[:1], return_tensors="pt")["input_ids"]
    model = ArrayModel(network)
    x = model.embedded(ids)
    assert x.dtype == np.float32
    expected = conserva.relevance(network, ids, 1).values["input_ids"].sum(-1, keepdim=True)
    np.testing.assert_array_equal(explain_func(model, x, [1]), expected.numpy())
    assert np.isfinite(quantus.Sparseness(disable_warnings=True)(
        model, x, np.array([1]), channel_first=True, explain_func=explain_func
    )).all()  # fmt: skip


# What is refused.


def test_a_batch_that_does_not_fit_the_mask(text: Case) -> None:
    with pytest.raises(conserva.Error, match=r"attention_mask has 3 rows, and the batch has 2: .*batch_size=3"):
        text(quantus.Complexity(disable_warnings=True), batch_size=2)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([0, 1], "target has 2 entries for 3 sample"),
        ([0, 1, 9], "target=9 is out of range"),
        ([0.5, 1.0, 0.0], "target=0.5 is not a class index"),
    ],
)
def test_bad_targets(case: Case, targets: list[Any], message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        explain_func(case.model, case.x, np.array(targets))


def test_inputs_that_are_no_numbers(text: Case) -> None:
    with pytest.raises(conserva.Error, match=r"inputs has dtype int64: .*embedded\(ids\)"):
        explain_func(text.model, text.inputs["input_ids"].numpy(), text.y)
    with pytest.raises(conserva.Error, match=r"inputs has 'input_ids', .*one array of numbers"):
        explain_func(text.model, text.inputs, text.y)  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match=r"inputs has shape \(3,\)"):
        explain_func(text.model, np.zeros(3), text.y)
    with pytest.raises(conserva.Error, match=r"inputs has shape \(0, 3\)"):
        explain_func(text.model, np.zeros((0, 3)), [])
    with pytest.raises(conserva.Error, match=r"model='bert' is not a torch\.nn\.Module"):
        explain_func("bert", text.x, text.y)  # type: ignore[arg-type]


@pytest.mark.parametrize("axes", [(0,), (3,), (-3,)])
def test_axes_without_the_batch(text: Case, axes: tuple[int, ...]) -> None:
    with pytest.raises(conserva.Error, match=r"reduce_axes=.* without the batch's, 0"):
        explain_func(text.model, text.x, text.y, reduce_axes=axes)


def test_models_without_attention() -> None:
    network = nn.Linear(4, 2).eval()
    with pytest.raises(conserva.Error, match="Linear has no attention"):
        explain_func(network, np.ones((1, 4)), [0])
    series = shake(nn.Sequential(nn.Conv1d(3, 4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)))
    x = np.random.default_rng(0).normal(size=(6, 3, 20)).astype(np.float32)
    rules = conserva.rules("exact", attention="refuse")
    found = explain_func(series, x, [0, 1] * 3, rules=rules, reduce_axes=1)
    expected = next(iter(conserva.relevance(series, torch.from_numpy(x), [0, 1] * 3, rules=rules).values.values()))
    np.testing.assert_array_equal(found, expected.sum(1, keepdim=True).numpy())
    metric = quantus.MaxSensitivity(nr_samples=2, disable_warnings=True)
    arguments = {"rules": rules, "reduce_axes": 1}
    scores = metric(
        series, x, np.array([0, 1] * 3), channel_first=True, explain_func=explain_func, explain_func_kwargs=arguments
    )
    assert all(0 < score < np.inf for score in scores)


def test_models_that_take_no_such_array(text: Case) -> None:
    with pytest.raises(conserva.Error, match="ViTForImageClassification has no argument 'inputs_embeds'"):
        ArrayModel(vit(), "inputs_embeds")
    with pytest.raises(conserva.Error, match="BertForSequenceClassification has no argument 'mask'"):
        ArrayModel(text.network, mask=torch.ones(3))
    with pytest.raises(conserva.Error, match=r"is not a torch\.nn\.Module"):
        ArrayModel("bert")  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match="takes 'pixel_values', and not the embeddings of tokens"):
        ArrayModel(vit()).embedded(torch.ones(1, 3, dtype=torch.long))
    with pytest.raises(conserva.Error, match="training mode"):
        ArrayModel(vit().train())


def test_the_page_runs_and_shows_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown, printed = shown_and_printed("quantus")
    assert printed == shown


@pytest.mark.parametrize("one", [explain_func, ArrayModel])
def test_examples_run(one: Any) -> None:
    assert wrong_examples(one) == ""
