"""Which epoch of a training is kept, and what is measured on which split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import conserva
from chains import IDS, SIZES
from conserva.datasets import Dataset
from conserva.models.graphormer import Graphormer, GraphormerConfig
from conserva.paper.training import run, trainer
from conserva.paper.training.measures import measure
from conserva.paper.training.samples import Samples
from conserva.paper.training.text_samples import TextSamples
from conserva.paper.training.trainer import Trainer
from training_data import TEXTS
from training_kinds import GRAPH, KINDS, SHORT, texts, trained, weights

pytestmark = pytest.mark.usefixtures("known_datasets")

Call = tuple[Samples, dict[str, torch.Tensor]]


def measuring(monkeypatch: pytest.MonkeyPatch, metric: str, values: list[tuple[float, float]]) -> list[Call]:
    """Let metric and loss on validation be these, epoch by epoch; return the samples and the weights of each call."""
    calls: list[Call] = []

    def measured(model: torch.nn.Module, data: Samples, given: str) -> dict[str, float]:
        assert given == metric
        calls.append((data, {name: value.clone() for name, value in model.state_dict().items()}))
        value, loss = values[len(calls) - 1] if len(calls) <= len(values) else (0.25, 1.0)
        # Accuracy is not what decides where the metric is another: the first epoch has the best one.
        accuracy = 1.0 if len(calls) == 1 else 0.1
        return {"loss": loss, "accuracy": accuracy, metric: value}

    monkeypatch.setattr(trainer, "measure", measured)
    monkeypatch.setattr(run, "measure", measured)
    return calls


@pytest.mark.parametrize(
    ("kind", "changes", "values", "kept", "best"),
    {
        "patience is over": ("texts", {}, [(0.5, 1.0), (0.8, 1.0), (0.7, 0.1), (0.8, 1.2)], 2, 2),
        "all epochs are": ("texts", {}, [(0.5, 1.0), (0.6, 1.0), (0.5, 1.0), (0.7, 1.0), (0.6, 1.0)], 4, 4),
        "of equals the lower loss": ("texts", {}, [(0.5, 1.0), (0.5, 0.9), (0.5, 0.9), (0.5, 0.95)], 2, 2),
        "never better": ("texts", {}, [(0.5, 1.0), (0.5, 1.0), (0.5, 1.0)], 1, 1),
        "graphs": ("graphs", {}, [(0.5, 1.0), (0.8, 0.9), (0.7, 0.8)], 2, 2),
        "graphs, the first": ("graphs", {}, [(0.9, 1.0), (0.8, 0.9), (0.7, 0.8)], 1, 1),
        "graphs, of equals": ("graphs", {}, [(0.5, 1.0), (0.8, 0.9), (0.8, 0.8)], 3, 3),
        "graphs, the last": ("graphs", {"keep": "last"}, [(0.5, 1.0), (0.8, 0.9), (0.7, 0.8)], 3, 2),
    }.values(),
)
def test_the_epoch_that_the_recipe_names_is_kept(
    kind: str,
    changes: dict[str, Any],
    values: list[tuple[float, float]],
    kept: int,
    best: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metric = KINDS[kind].make().metric
    calls = measuring(monkeypatch, metric, values)
    recipe = replace(SHORT, epochs=5, patience=2) if kind == "texts" else replace(GRAPH, **changes)  # type: ignore[call-arg]
    found = trained(kind, tmp_path, recipe=recipe)
    assert [(one[f"validation_{metric}"], one["validation_loss"]) for one in found["epochs"]] == values
    assert (found["kept_epoch"], found["best_epoch"], found["last_epoch"]) == (kept, best, len(values))
    assert (found[f"validation_{metric}"], found[f"test_{metric}"]) == (values[kept - 1][0], 0.25)
    # The test split is measured once, at the end, with the weights that are kept; validation in every epoch.
    assert [len(one) for one, _ in calls] == [SIZES["validation"]] * len(values) + [SIZES["test"]]
    saved = weights(tmp_path)
    assert all(torch.equal(saved[name], value) for name, value in calls[kept - 1][1].items())
    assert all(torch.equal(calls[-1][1][name], value) for name, value in saved.items())
    last = calls[len(values) - 1][1]
    assert kept == len(values) or any(not torch.equal(saved[name], value) for name, value in last.items())


def test_texts_of_each_split_are_measured(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = measuring(monkeypatch, "accuracy", [(0.5, 1.0), (0.6, 1.0)])
    texts(tmp_path)
    tokenizer = conserva.load().tokenizer
    expected = [TextSamples.of(data.read(name), tokenizer, 8, torch.device("cpu")) for name in ("validation", "test")]
    measured = [one.ids.tolist() for one, _ in calls if isinstance(one, TextSamples)]
    assert measured == [one.ids.tolist() for one in (expected[0], *expected)]


def test_a_long_history_is_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ROWS", 3)
    measuring(monkeypatch, "roc_auc", [(0.9 if epoch == 3 else 0.5, 1.0) for epoch in range(1, 11)])
    found = trained("graphs", tmp_path, recipe=replace(GRAPH, epochs=10))
    assert [one["epoch"] for one in found["epochs"]] == [3, 4, 8, 10]


def test_accuracy_is_measured_with_dropout_off(data: Dataset) -> None:
    task = conserva.load()
    samples = TextSamples.of(data.read("test"), task.tokenizer, 8, torch.device("cpu"))
    task.model.train()
    found = measure(task.model, samples)
    logits = torch.stack([task.model(torch.tensor([task.encode(text).ids[:8]])).logits[0] for text, _ in TEXTS["test"]])
    labels = torch.tensor([label for _, label in TEXTS["test"]])
    assert not task.model.training
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == labels).float().mean().item())
    assert found["loss"] == pytest.approx(-logits.log_softmax(-1)[range(10), labels].mean().item(), rel=1e-5)


def test_without_validation_all_is_trained_on(tmp_path: Path) -> None:
    found = trained("graphs", tmp_path, recipe=replace(GRAPH, hold_out=False, keep="last"))  # type: ignore[call-arg]
    assert found["graphs"] == {"train+validation": 36, "test": 10}
    assert (found["kept_epoch"], found["best_epoch"], found["validation_roc_auc"]) == (3, None, None)
    assert found["epochs"] == [{"epoch": one["epoch"], "loss": one["loss"]} for one in found["epochs"]]


def test_the_average_is_that_of_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[torch.Tensor]] = []
    update = Trainer._update_average

    def noted(self: Trainer) -> None:
        seen.append([p.detach().clone() for p in self.model.parameters()])
        update(self)

    monkeypatch.setattr(Trainer, "_update_average", noted)
    last = replace(GRAPH, keep="last")  # type: ignore[call-arg]
    plain = trained("graphs", tmp_path / "plain", recipe=last)
    course, seen = seen, []
    found = trained("graphs", tmp_path / "mean", recipe=replace(last, average=0.99))  # type: ignore[call-arg]
    # What is trained does not know of it.
    assert all(
        torch.equal(a, b) for one, other in zip(course, seen, strict=True) for a, b in zip(one, other, strict=True)
    )
    weight = [min(0.99, step / (step + 9)) for step in range(1, len(seen) + 1)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Graphormer(GraphormerConfig(**IDS.shape, num_labels=2))
    expected = [p.detach() * float(np.prod(weight)) for p in model.parameters()]
    rest = 1.0
    for left, one in zip(reversed(weight), reversed(seen), strict=True):
        expected = [mean + rest * (1 - left) * p for mean, p in zip(expected, one, strict=True)]
        rest *= left
    saved = weights(tmp_path / "mean")
    names = [name for name, _ in model.named_parameters()]
    for name, mean in zip(names, expected, strict=True):
        torch.testing.assert_close(saved[name], mean, rtol=1e-4, atol=1e-6)
    assert found["weights"] != plain["weights"]
