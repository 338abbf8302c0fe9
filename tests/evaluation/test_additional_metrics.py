"""Symmetric relevance gain, linear datamodelling score and tau against plain loops written from the formulas."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import conserva
from conserva.attribution import Method, find
from conserva.cli import main
from conserva.evaluation import measure
from conserva.evaluation.journal import NAME
from conserva.evaluation.protocol import PROTOCOLS, plan, protocol_of
from conserva.evaluation.removal_ranks import subsets
from conserva.evaluation.result import ADDITIONAL, METRICS
from conserva.evaluation.samples import Sample
from conserva.evaluation.store import save
from conserva.evaluation.stream import Stream
from conserva.evaluation.summary import GAIN_CURVES
from reviews import REVIEWS
from slow_ranks import slow_spearman, slow_tau

ALL = {"srg": True, "lds": 12, "tau": True}
METHODS = ["random:seed=1", "gi", "ah+ln", "gae"]

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.load()


@pytest.fixture(scope="module")
def exact_task() -> conserva.Text:
    task = conserva.load()
    task.model.double()
    return task


def slow_gain(order: Sequence[int], value: Callable[[frozenset[int]], float], steps: int) -> float:
    """The area between the curves of a value as features are removed, from the last of an order and from the first."""
    counts = [k * len(order) // steps for k in range(steps + 1)]
    gains = [value(frozenset(order[len(order) - n :])) - value(frozenset(order[:n])) for n in counts]
    return sum((a + b) / 2 / steps for a, b in itertools.pairwise(gains))


def slow(
    task: conserva.Text, text: str, method: str, *, special: bool, target: int | None, mask: str, steps: int | None
) -> dict[str, Any]:
    """Return the metrics and the curves of one sample, one input at a time."""
    inputs = task.tokenizer(text, return_tensors="pt")
    ids = inputs["input_ids"]
    marks = task.tokenizer.get_special_tokens_mask(ids[0].tolist(), already_has_special_tokens=True)
    places = [i for i, mark in enumerate(marks) if special or not mark]
    stand_in = {"unk": task.tokenizer.unk_token_id, "mask": task.tokenizer.mask_token_id}[mask]

    @cache
    def logits(removed: frozenset[int]) -> list[float]:
        changed = ids.clone()
        for i in removed:
            changed[0, i] = stand_in
        with torch.no_grad():
            return task.model(input_ids=changed, attention_mask=inputs["attention_mask"]).logits[0].tolist()

    clean = logits(frozenset())
    chosen = clean.index(max(clean)) if target is None else target

    def value(removed: frozenset[int]) -> float:
        return logits(removed)[chosen]

    scores = find(method).apply(task.model, inputs, [chosen]).scores["input_ids"][0].double().tolist()
    falling = sorted(places, key=lambda i: (-scores[i], i))
    counts = [k * len(falling) // (steps or len(places)) for k in range((steps or len(places)) + 1)]
    removed = [logits(frozenset(falling[:n])) for n in counts]
    found: dict[str, Any] = {
        "most_first": [row[chosen] for row in removed],
        "most_first_probability": [math.exp(row[chosen]) / sum(map(math.exp, row)) for row in removed],
        "least_first": [value(frozenset(falling[len(falling) - n :])) for n in counts],
    }
    found |= {"srg": slow_gain(falling, value, steps or len(places)), "lds": None, "tau": None}
    kept = subsets(Sample(0, task.encode(text), None), PROTOCOLS["paper" if special else "default"], ALL["lds"])
    if len(places) >= 3:
        outputs = [value(frozenset(i for i in places if not row[i])) for row in kept]
        found["lds"] = slow_spearman(outputs, [math.fsum(scores[i] for i in places if row[i]) for row in kept])
    if len(places) > 1:
        drops = [clean[chosen] - value(frozenset([i])) for i in places]
        found["tau"] = slow_tau([scores[i] for i in places], drops)
    return found


@pytest.mark.parametrize(
    ("protocol", "mask", "steps"), [("default", "mask", None), ("default", "unk", "each"), ("paper", "unk", 3)]
)
def test_they_are_those_of_a_plain_loop(
    exact_task: conserva.Text, protocol: str, mask: str, steps: int | str | None
) -> None:
    labels = [1, 0, 0, 1, 0, 0]
    data = list(zip(REVIEWS, labels, strict=True))
    found = conserva.evaluate(exact_task, data, METHODS, protocol=protocol, mask=mask, steps=steps, **ALL)
    one_by_one = {"special": protocol == "paper", "mask": mask, "steps": protocol_of(protocol, None, True, steps).steps}
    for row in found.methods[:-1]:
        targets = labels if protocol == "paper" else [None] * len(labels)
        loop = [slow(exact_task, text, row.method, target=c, **one_by_one) for text, c in zip(REVIEWS, targets)]  # noqa: B905
        for metric in ADDITIONAL:
            expected = [one[metric] for one in loop if one[metric] is not None]
            assert getattr(row, metric).mean == pytest.approx(np.mean(expected), abs=1e-5), (row.method, metric)
            assert found.without_value.get(metric, 0) == len(REVIEWS) - len(expected)
        for curve in GAIN_CURVES if steps != "each" else ():
            np.testing.assert_allclose(row.curves[curve].mean, np.mean([one[curve] for one in loop], axis=0), atol=1e-5)
    assert found.methods[-1].method == "leave-one-out"
    assert found.methods[-1].tau.mean == 1.0
    assert found.metrics == (*METRICS, *ADDITIONAL)
    assert {key: found.protocol[key] for key in ALL} == ALL


def test_by_default_none_is_measured(task: conserva.Text) -> None:
    found = conserva.evaluate(task, REVIEWS, ["gi"])
    assert found.metrics == METRICS
    assert [getattr(found.methods[0], metric) for metric in ADDITIONAL] == [None] * 3
    assert set(found.methods[0].curves) == {"activation", "pruning", "pruning_probability"}
    assert not set(ALL) & set(found.protocol)
    with pytest.raises(conserva.Error, match="metric='srg' was not measured: choose one of auac"):
        found.surely_best("srg")
    old = json.loads(found.to_json())
    del old["without_value"]
    for row in old["methods"]:
        for metric in ADDITIONAL:
            del row[metric]
    assert conserva.Evaluation.from_json(json.dumps(old)) == found


def test_intervals_and_differences_are_those_of_the_samples(task: conserva.Text) -> None:
    found = conserva.evaluate(task, REVIEWS, ["gi", "exact", "random"], random_seeds=2, **ALL)
    assert conserva.Evaluation.from_json(found.to_json()) == found
    assert found.without_value == {"lds": 1, "tau": 1}  # "dull" is one token
    rows = {row.method: row for row in found.methods}
    assert len(found.pairs) == 8 * 6
    for pair in found.pairs:
        expected = getattr(rows[pair.a], pair.metric).mean - getattr(rows[pair.b], pair.metric).mean
        assert pair.mean == pytest.approx(expected, abs=1e-9)
        assert pair.low <= pair.mean <= pair.high
    gain = rows["exact"].curves
    difference = np.subtract(gain["least_first"].mean, gain["most_first"].mean)
    assert rows["exact"].srg.mean == pytest.approx(difference[1:-1].sum() / 10, abs=1e-9)
    assert difference[[0, -1]].tolist() == [0, 0]


@pytest.mark.parametrize("budgets", [{"tokens": 1, "batch_tokens": 1}, {"tokens": 100, "batch_tokens": 40}])
def test_batches_change_nothing(exact_task: conserva.Text, budgets: dict[str, int]) -> None:
    whole = conserva.evaluate(exact_task, REVIEWS, METHODS, **ALL)
    for text_order in (1, -1):
        parts = conserva.evaluate(exact_task, REVIEWS[::text_order], METHODS, **ALL, **budgets)
        for row, expected in zip(parts.methods, whole.methods, strict=True):
            for metric in ADDITIONAL:
                assert getattr(row, metric).mean == pytest.approx(getattr(expected, metric).mean, abs=1e-5)


def test_what_they_cost(task: conserva.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    logits = Stream.logits

    def counted(stream: Stream, parts: Sequence) -> list[np.ndarray]:
        asked.append(sum(map(len, parts)))
        return logits(stream, parts)

    def cost(methods: list[str], **options: object) -> list[int]:
        asked.clear()
        conserva.evaluate(task, texts, methods, tokens=10**6, batch_tokens=10**6, **options)
        return asked[:]

    monkeypatch.setattr(Stream, "logits", counted)
    texts = [text for text in REVIEWS if text != "dull"]
    features = sum(len(task.encode(text)) - 2 for text in texts)
    complete, curves = len(texts), 32 * len(texts)  # 11 points of two curves, 5 of comprehensiveness and of sufficiency
    assert cost(["gi"], reference=False) == [complete, curves]
    assert cost(["gi"], reference=False, srg=True) == [complete, curves + 9 * len(texts)]  # the rest is known
    assert cost(["gi"], reference=False, lds=7) == [complete, curves + 7 * len(texts)]
    assert cost(["gi", "ah"], reference=False, lds=7) == [complete, 2 * curves + 7 * len(texts)]  # shared
    assert cost(["gi", "ah"], reference=False, tau=True) == [complete, features, 2 * curves]
    assert cost(["gi"], tau=True) == cost(["gi"]) == [complete, features, 2 * curves]


# Orders and ties

CASES = st.lists(st.integers(-2, 2), min_size=1, max_size=24)


@settings(deadline=None, max_examples=80)
@given(CASES, st.sampled_from([1, 2, 3, 10, None]), st.data())
def test_both_curves_of_the_gain_remove_as_many(values: list[int], steps: int | None, data: st.DataObject) -> None:
    maskable = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    maskable[0] = True
    scores, protocol = np.array(values, dtype=float), protocol_of("default", None, True, steps or "each")
    found = plan(scores, maskable, protocol, srg=True)
    least, most = found.kept[found.activation][::-1][1:-1], found.kept[found.most_first]
    count, steps = int(maskable.sum()), steps or int(maskable.sum())
    assert len(least) == len(most) == steps - 1
    for k, (without_least, without_most) in enumerate(zip(least, most, strict=True), 1):
        assert without_most[~maskable].all()
        assert (~without_least).sum() == (~without_most).sum() == k * count // steps
        kept = scores[without_most & maskable]
        if (~without_most).any() and len(kept):
            assert scores[~without_most].min() >= kept.max()
    same = plan(np.ones(len(values)), maskable, protocol, srg=True)
    assert (same.kept[same.activation][::-1][1:-1] == same.kept[same.most_first]).all()
    without = plan(scores, maskable, protocol)
    assert len(without.kept) == len(found.kept) - len(most)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([2, 3, 10]))
def test_the_gain_is_0_on_average_over_all_orders(seed: int, count: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    values = {bits: rng.normal() for bits in itertools.product([False, True], repeat=count)}
    protocol, gains = protocol_of("default", None, True, steps), []
    for order in itertools.permutations(range(count)):
        found = plan(np.array(order, dtype=float), np.ones(count, dtype=bool), protocol, srg=True)
        least, most = found.kept[found.activation][::-1][1:-1], found.kept[found.most_first]
        gains.append(
            sum(values[tuple(a.tolist())] - values[tuple(b.tolist())] for a, b in zip(least, most, strict=True))
        )
    assert np.mean(gains) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("score", [0.1, 0.0, -3.0])
def test_equal_scores_gain_nothing_from_positions(
    exact_task: conserva.Text, score: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flat(model: torch.nn.Module, inputs: dict, target: list[int]):
        one = find("gi").apply(model, inputs, target)
        return replace(one, scores={name: torch.full_like(values, score) for name, values in one.scores.items()})

    monkeypatch.setattr("conserva.evaluation.run.find", lambda name, **how: Method(name, "", flat))
    found = conserva.evaluate(exact_task, REVIEWS, ["flat"], **ALL)
    assert (found.methods[0].srg.low, found.methods[0].srg.high) == (0, 0)
    assert (found.methods[0].tau.low, found.methods[0].tau.high) == (0, 0)
    expected = []
    for text in REVIEWS:
        sample = Sample(0, exact_task.encode(text), None)
        kept, maskable = subsets(sample, PROTOCOLS["default"], 12), sample.maskable(PROTOCOLS["default"])
        if len(kept):  # only how many features are kept matters
            rows = exact_task.masked(sample.encoded, np.concatenate([np.ones((1, len(maskable)), bool), kept]), "mask")
            clean, *others = Stream(exact_task).logits([rows])[0].tolist()
            outputs = [row[clean.index(max(clean))] for row in others]
            expected.append(slow_spearman(outputs, (np.sign(score) * (kept & maskable).sum(1)).tolist()))
    assert found.methods[0].lds.mean == pytest.approx(np.mean(expected), abs=1e-9)
    assert (found.methods[0].lds.mean == 0) == (score == 0)


def test_samples_without_a_value_are_counted(task: conserva.Text) -> None:
    found = conserva.evaluate(task, ["a joy.", "dull", "so bad"], ["gi"], lds=8, tau=True, reference=False)
    assert found.without_value == {"lds": 2, "tau": 1}
    alone = conserva.evaluate(task, ["a joy."], ["gi"], lds=8, reference=False)
    assert found.methods[0].lds.mean == pytest.approx(alone.methods[0].lds.mean)
    none = conserva.evaluate(task, ["dull", "bad"], ["gi"], lds=8, tau=True, reference=False)
    assert none.metrics == METRICS
    assert none.without_value == {"lds": 2, "tau": 2}
    assert conserva.Evaluation.from_json(none.to_json()) == none


# Runs


@pytest.mark.parametrize("reference", [True, False])
def test_an_interrupted_run_ends_the_same(
    task: conserva.Text, reference: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"reference": reference, "tokens": 64, **ALL}
    whole = conserva.evaluate(task, REVIEWS, ["gi", "ah"], out=tmp_path / "whole", **options)
    calls = []

    def stops(*arguments: object) -> list:
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure.curves(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("conserva.evaluation.run.curves", stops)
    with pytest.raises(KeyboardInterrupt):
        conserva.evaluate(task, REVIEWS, ["gi", "ah"], out=tmp_path / "broken", **options)
    assert conserva.evaluate(task, REVIEWS, ["gi", "ah"], out=tmp_path / "broken", **options) == whole
    assert len(calls) == 1 + len(REVIEWS)
    one, other = ((tmp_path / name / NAME).read_bytes().splitlines() for name in ("whole", "broken"))
    assert sorted(one) == sorted(other)
    calls.clear()
    assert conserva.evaluate(task, REVIEWS, ["gi", "ah"], out=tmp_path / "whole", **options) == whole
    assert not calls
    for changes, says in (
        ({"lds": 11}, r"lds \(was 12, is 11\)"),
        ({"srg": False}, r"srg \(was true, is null\)"),
        ({"tau": False}, r"tau \(was true, is null\)"),
    ):
        with pytest.raises(conserva.Error, match=f"It differs in {says}"):
            conserva.evaluate(task, REVIEWS, ["gi", "ah"], out=tmp_path / "whole", **{**options, **changes})


def test_the_command_line_measures_and_keeps_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "reviews.csv", tmp_path / "out"
    data.write_text("text\n" + "".join(f'"{text}"\n' for text in REVIEWS[:3]), encoding="utf-8")
    command = ["evaluate", "--data", str(data), "--methods", "gi,exact", "--no-reference"]
    assert main([*command, "--srg", "--tau", "--lds", "--out", str(out)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for said in ("SRG ↑", "LDS ↑", "tau ↑", "No value: LDS on 1, tau on 1 of 3 samples"):
        assert said in printed
    found = conserva.Evaluation.load(out / "evaluation.json")
    assert (found.protocol["srg"], found.protocol["lds"], found.protocol["tau"]) == (True, 32, True)
    assert "random subsets of features, LDS" in (out / "report.html").read_text(encoding="utf-8")
    table = pyarrow.parquet.read_table(save(found, out)[1]).to_pydict()
    rows = list(zip(table["method"], table["curve"], table["step"], table["value"], strict=True))
    for step in (0, 4, 10):
        values = [value for method, curve, at, value in rows if (method, curve, at) == ("gi", "most_first", step)]
        assert np.mean(values) == pytest.approx(found.methods[0].curves["most_first"].mean[step])
    for wrong, says in (("1", "lds=1: give the number of subsets"), ("-4", "lds=-4"), ("100001", "more than 100,000")):
        assert main([*command, f"--lds={wrong}"]) == 1
        assert says in capsys.readouterr().err


@pytest.mark.parametrize("mask", ["token", "induced"])
def test_they_are_measured_on_graphs(mask: str) -> None:
    molecules = ["CCO", "c1ccccc1O", "CC(=O)NC1=CC=CC=C1"]
    found = conserva.evaluate(conserva.load("bace"), molecules, ["gi"], mask=mask, steps="each", **ALL)
    assert found.metrics == (*METRICS, *ADDITIONAL)
    assert found.methods[1].tau.mean == 1.0
    assert found.without_value == {}
