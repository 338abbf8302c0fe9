"""The evaluator against plain loops written from the definitions."""

from __future__ import annotations

import itertools
import json
import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import conserva
from conserva.attribution import find
from conserva.evaluation import measure
from conserva.evaluation.comparison import rows_of_methods
from conserva.evaluation.protocol import ERASER_PERCENT, PROTOCOLS, plan
from conserva.evaluation.samples import Sample
from conserva.evaluation.statistics import RESAMPLES, Bootstrap, Table, area, conservation
from conserva.evaluation.stream import Stream
from conserva.tasks.masking import TextRows
from reviews import REVIEWS

LABELS = ["positive", "negative", "negative", "positive", "negative", "negative"]
METHODS = ["random:seed=1", "gi", "ah+ln", "gae"]

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.load()


def slow(task: conserva.Text, text: str, method: str, *, special: bool, target: int | None, mask: str) -> dict:
    """Return the points of one sample, one input at a time, from the definitions."""
    inputs = task.tokenizer(text, return_tensors="pt")
    ids, ones = inputs["input_ids"], inputs["attention_mask"]
    marks = task.tokenizer.get_special_tokens_mask(ids[0].tolist(), already_has_special_tokens=True)
    places = [i for i, mark in enumerate(marks) if special or not mark]
    stand_in = {"unk": task.tokenizer.unk_token_id, "mask": task.tokenizer.mask_token_id, "pad": 0}

    @cache
    def logits_without(removed: frozenset[int]) -> list[float]:
        changed, seen = ids.clone(), ones.clone()
        for i in removed:
            if mask == "drop":
                seen[0, i] = 0
            else:
                changed[0, i] = stand_in[mask]
        with torch.no_grad():
            return task.model(input_ids=changed, attention_mask=seen).logits[0].double().tolist()

    def logits(removed: list[int]) -> list[float]:
        return logits_without(frozenset(removed))

    def probability(removed: list[int]) -> float:
        raised = [math.exp(x) for x in logits(removed)]
        return raised[target] / sum(raised)

    clean = logits([])
    target = clean.index(max(clean)) if target is None else target
    scores = find(method).apply(task.model, inputs, [target]).scores["input_ids"][0].double().tolist()
    falling = sorted(places, key=lambda i: -scores[i])  # sorted is stable: ties go by place
    rising = sorted(places, key=lambda i: abs(scores[i]))
    n = len(places)
    counts = [math.ceil(round(k * n / 10, 9)) for k in range(11)]
    tops = [math.ceil(round(p * n / 100, 9)) for p in ERASER_PERCENT]
    whole = probability([])
    return {
        "activation": [probability(falling[c:]) for c in counts],
        "pruning": [sum((a - b) ** 2 for a, b in zip(clean, logits(rising[:c]), strict=True)) for c in counts],
        "pruning_probability": [probability(rising[:c]) for c in counts],
        "comprehensiveness": sum(whole - probability(falling[:c]) for c in tops) / len(tops),
        "sufficiency": sum(whole - probability(falling[c:]) for c in tops) / len(tops),
        "sum": sum(scores),
        "output": clean[target],
    }


def trapezoids(points: list[float]) -> float:
    return sum((a + b) / 2 * 0.1 for a, b in itertools.pairwise(points))


SETTINGS = [
    ("default", "predicted", "mask"),
    ("default", "true", "drop"),
    ("default", "predicted", "pad"),
    ("paper", "true", "unk"),
]


@pytest.mark.parametrize(("protocol", "target", "mask"), SETTINGS)
def test_the_stream_equals_a_plain_loop(task: conserva.Text, protocol: str, target: str, mask: str) -> None:
    data = list(zip(REVIEWS, LABELS, strict=True))
    found = conserva.evaluate(task, data, METHODS, protocol=protocol, watch=target, mask=mask, batch_tokens=60)
    wanted = [task.labels[label] if target == "true" else None for label in LABELS]
    for result in found.methods[:-1]:
        how = {"special": protocol == "paper", "mask": mask}
        loop = [slow(task, text, result.method, target=c, **how) for text, c in zip(REVIEWS, wanted, strict=True)]
        for curve in ("activation", "pruning", "pruning_probability"):
            expected = np.mean([one[curve] for one in loop], axis=0)
            np.testing.assert_allclose(result.curves[curve].mean, expected, atol=1e-5, rtol=1e-5)
        areas = {"auac": "activation", "au_mse": "pruning", "aupc": "pruning_probability"}
        for metric, curve in areas.items():
            expected = np.mean([trapezoids(one[curve]) for one in loop])
            assert getattr(result, metric).mean == pytest.approx(expected, abs=1e-5, rel=1e-5)
        for metric in ("comprehensiveness", "sufficiency"):
            assert getattr(result, metric).mean == pytest.approx(np.mean([one[metric] for one in loop]), abs=1e-5)
        assert result.conservation.outputs == pytest.approx([one["output"] for one in loop], abs=1e-5)
        assert result.conservation.sums == pytest.approx([one["sum"] for one in loop], abs=1e-4, rel=1e-3)
    assert found.accuracy == 1.0
    assert found.protocol["mask"] == mask


def test_every_method_shares_its_endpoints(task: conserva.Text) -> None:
    found = conserva.evaluate(task, REVIEWS, ["random", "gi", "exact", "rollout"], random_seeds=2)
    assert [one.method for one in found.methods] == ["random", "gi", "exact", "rollout", "leave-one-out"]
    clean = [one.probability for one in conserva.explain(task, REVIEWS)]
    for one in found.methods:
        activation, pruning = one.curves["activation"].mean, one.curves["pruning"].mean
        assert activation[-1] == pytest.approx(np.mean(clean), abs=1e-6)
        assert pruning[0] == 0
        assert activation[0] == pytest.approx(found.methods[0].curves["activation"].mean[0], abs=1e-12)
        assert pruning[-1] == pytest.approx(found.methods[0].curves["pruning"].mean[-1], abs=1e-9)
        assert one.curves["pruning_probability"].mean[0] == pytest.approx(activation[-1], abs=1e-12)
        assert one.reference == (one.method == "leave-one-out")


def test_leave_one_out_is_what_it_says(task: conserva.Text) -> None:
    text = REVIEWS[2]
    sample = measure.Sample(0, task.encode(text), None)
    with torch.no_grad():
        ids = torch.tensor([sample.encoded.ids])
        clean = task.model(input_ids=ids).logits[0, 0].item()
        expected = []
        for i, special in enumerate(sample.encoded.special):
            changed = ids.clone()
            changed[0, i] = task.tokenizer.mask_token_id
            expected.append(0.0 if special else clean - task.model(input_ids=changed).logits[0, 0].item())
    found = measure.leave_one_out(task, Stream(task), [sample], PROTOCOLS["default"], "mask", [0], [clean])[0]
    assert found == pytest.approx(expected, abs=1e-5)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_a_plan_keeps_what_the_protocol_says(values: list[int], data: st.DataObject) -> None:
    maskable = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    if not maskable.any():
        maskable[0] = True
    scores, protocol = np.array(values, dtype=float), PROTOCOLS["default"]
    found = plan(scores, maskable, protocol)
    n = int(maskable.sum())
    assert (found.kept[:, ~maskable]).all()
    for k, (added, left) in enumerate(zip(found.kept[found.activation], found.kept[found.pruning], strict=True)):
        count = -(-k * n // 10)
        assert (added & maskable).sum() == count
        assert (left & maskable).sum() == n - count
        if 0 < count < n:
            assert scores[added & maskable].min() >= scores[~added].max()
            assert np.abs(scores[~left]).max() <= np.abs(scores[left & maskable]).min()


def test_counts_are_whole_numbers() -> None:
    """In floats 0.3 * 10 is a little more than 3: the released code then takes four features."""
    assert PROTOCOLS["paper"].counts(10).tolist() == list(range(11))
    assert PROTOCOLS["paper"].counts(7).tolist() == [0, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7]


def test_equal_rows_are_evaluated_once_and_padding_changes_nothing(task: conserva.Text) -> None:
    rows = []
    for text in [*REVIEWS, *REVIEWS, REVIEWS[0]]:
        ids = np.array(task.encode(text).ids)
        rows.append(TextRows(ids[None], np.ones_like(ids)[None]))
    for tokens in (1, 10, 60, 5000):
        stream = Stream(task, tokens)
        found = stream.logits(rows)
        assert (stream.asked, stream.evaluated) == (13, 6)
        for row, logits in zip(rows, found, strict=True):
            alone = task.model(input_ids=torch.tensor(row.ids)).logits.detach().numpy()
            np.testing.assert_allclose(logits, alone, atol=1e-5)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_batches_shrink_when_memory_runs_out(task: conserva.Text, error: Exception, monkeypatch) -> None:
    sizes, forward = [], task.model.forward

    def limited(input_ids: torch.Tensor, **rest: torch.Tensor):
        sizes.append(input_ids.numel())
        if input_ids.numel() > 50:
            raise error
        return forward(input_ids=input_ids, **rest)

    expected = conserva.evaluate(task, REVIEWS, ["gi"], reference=False)
    monkeypatch.setattr(task.model, "forward", limited)
    stream = Stream(task)
    ids = np.array(task.encode(REVIEWS[2]).ids)
    changed = np.where(np.eye(9, len(ids), dtype=bool), 4, ids)
    rows = [TextRows(changed, np.ones_like(changed))]
    found = stream.logits(rows)
    assert stream.tokens <= 50 < max(sizes)
    monkeypatch.setattr(task.model, "forward", forward)
    np.testing.assert_allclose(found[0], Stream(task).logits(rows)[0], atol=1e-5)
    assert expected.samples == len(REVIEWS)


def test_an_input_that_never_fits_is_an_error(task: conserva.Text, monkeypatch) -> None:
    def full(**_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(task.model, "forward", full)
    ids = np.array([[2, 5, 3], [2, 6, 3]])
    with pytest.raises(conserva.Error, match="A single input of 3 tokens does not fit"):
        Stream(task).logits([TextRows(ids, np.ones_like(ids))])


def test_other_errors_of_a_model_are_not_taken_for_memory(task: conserva.Text, monkeypatch) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(task.model, "forward", broken)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        Stream(task).logits([TextRows(np.array([[2, 3]]), np.array([[1, 1]]))])


def test_nan_is_an_error_that_names_the_sample(monkeypatch) -> None:
    task = conserva.load()
    forward, poison = task.model.forward, task.encode("hackneyed").ids[1]

    def poisoned(input_ids: torch.Tensor, **rest: torch.Tensor):
        out = forward(input_ids=input_ids, **rest)
        out.logits = torch.where((input_ids == poison).any(-1, keepdim=True), float("nan"), out.logits)
        return out

    monkeypatch.setattr(task.model, "forward", poisoned)
    with pytest.raises(conserva.Error, match=r"Sample 5 \('an unwatchably hackneyed telenovela'\).*nan"):
        conserva.evaluate(task, REVIEWS, ["gi"])


def test_a_method_that_fails_names_the_sample(task: conserva.Text, monkeypatch) -> None:
    from conserva.attribution import Method, registry

    def fails(model, inputs, target):
        if inputs["input_ids"].shape[1] > 17:
            raise conserva.Error("The relevance has nan or inf.")
        return find("gi").apply(model, inputs, target)

    monkeypatch.setattr("conserva.evaluation.run.find", lambda name, **how: Method(name, "", fails))
    with pytest.raises(conserva.Error, match=r"Sample 3 \('not much.*nan or inf"):
        conserva.evaluate(task, REVIEWS, ["gi"])
    assert registry.find("gi").name == "gi"


def test_methods_that_do_not_apply_are_reported(task: conserva.Text, monkeypatch) -> None:
    from conserva.attribution import Method
    from conserva.errors import NotApplicable

    def refuses(model, inputs, target):
        raise NotApplicable("no maps here")

    def pick(name: str, **how: object) -> Method:
        return Method(name, "", refuses) if name == "rollout" else find(name)

    monkeypatch.setattr("conserva.evaluation.run.find", pick)
    found = conserva.evaluate(task, REVIEWS, ["gi", "rollout"])
    assert found.refused == {"rollout": "no maps here"}
    assert [one.method for one in found.methods] == ["gi", "leave-one-out"]
    with pytest.raises(conserva.Error, match="No method applies to sentiment: no maps here"):
        conserva.evaluate(task, REVIEWS, ["rollout"])


def test_an_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(300):
        bootstrap = Bootstrap(Table.of(rng.exponential(size=(60, 1))), seed=trial, resamples=400)
        (one,) = bootstrap.intervals(slice(1))
        hits += one.low <= 1.0 <= one.high
    assert 0.88 <= hits / 300 <= 0.97


def test_differences_are_paired() -> None:
    """Two methods that differ by 0.1 on every sample differ surely, however much samples vary."""
    base = np.random.default_rng(1).normal(size=(40, 1)) * 5
    bootstrap = Bootstrap(Table.of(np.hstack([base, base + 0.1])), resamples=RESAMPLES)
    own, other = slice(0, 1), slice(1, 2)
    assert bootstrap.intervals(own)[0].high > bootstrap.intervals(other)[0].low
    assert bootstrap.intervals(other, own)[0].low == pytest.approx(0.1)


def test_pairs_are_the_differences_of_the_rows(task: conserva.Text) -> None:
    found = conserva.evaluate(task, REVIEWS, ["gi", "exact", "random"], random_seeds=2)
    rows = {one.method: one for one in found.methods}
    assert len(found.pairs) == 5 * 6
    for pair in found.pairs:
        expected = getattr(rows[pair.a], pair.metric).mean - getattr(rows[pair.b], pair.metric).mean
        assert pair.mean == pytest.approx(expected, abs=1e-9)
        assert pair.low <= pair.mean <= pair.high


def test_random_is_averaged_over_its_seeds(task: conserva.Text) -> None:
    joint = conserva.evaluate(task, REVIEWS, ["random"], random_seeds=3, reference=False).methods[0]
    each = [conserva.evaluate(task, REVIEWS, [f"random:seed={i}"], reference=False).methods[0] for i in range(3)]
    assert joint.method == "random"
    assert joint.auac.mean == pytest.approx(np.mean([one.auac.mean for one in each]))
    assert rows_of_methods(["random", "gi", "random:seed=1"]) == {"random": ["random", "random:seed=1"], "gi": ["gi"]}


def test_conservation_numbers() -> None:
    outputs = np.array([1.0, 2.0, 4.0])
    exact = conservation(outputs, outputs)
    assert (exact.correlation, exact.slope, exact.distance) == (pytest.approx(1), pytest.approx(1), 0)
    half = conservation(outputs, 0.5 * outputs + 1)
    assert (half.correlation, half.slope, half.distance) == (pytest.approx(1), pytest.approx(0.5), pytest.approx(0.5))
    flat = conservation(outputs, np.ones(3) + 1e-9 * np.arange(3))
    assert flat.correlation is None
    assert area(np.array([[0.0, 1.0, 1.0]]), (0, 0.5, 1)) == pytest.approx([0.75])


def test_json_contract(task: conserva.Text) -> None:
    found = conserva.evaluate(task, REVIEWS, ["gi", "ah+ln"])
    written = json.loads(found.to_json())
    assert {"methods", "pairs", "protocol", "provenance"} <= set(written)
    for one in written["methods"]:
        for metric in ("auac", "au_mse", "aupc", "comprehensiveness", "sufficiency"):
            assert set(one[metric]) == {"mean", "low", "high"}
        assert {"correlation", "slope", "distance"} <= set(one["conservation"])
    assert conserva.Evaluation.from_json(found.to_json()) == found
    assert {"conserva", "torch", "weights", "seed", "data"} <= set(written["provenance"])


def test_ties_go_by_place() -> None:
    scores = np.tile([1.0, 0.0, 2.0], 40)
    found = plan(scores, np.ones(120, dtype=bool), PROTOCOLS["default"])
    falling = sorted(range(120), key=lambda i: -scores[i])  # sorted is stable
    rising = sorted(range(120), key=lambda i: scores[i])
    for k, (added, left) in enumerate(zip(found.kept[found.activation], found.kept[found.pruning], strict=True)):
        assert set(np.flatnonzero(added)) == set(falling[: 12 * k])
        assert set(np.flatnonzero(~left)) == set(rising[: 12 * k])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_texts_that_do_not_fit_together_are_explained_in_halves(
    task: conserva.Text, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, texts = find("ah+ln"), ["a joy .", "not much of anything", "dull", "good fun and a good cast", "bad"]
    samples = [Sample(i, task.encode(text), 1) for i, text in enumerate(texts)]
    whole, numbers = measure.attributions(task, method, samples, [1] * 5)
    applied, most = measure._applied, []

    def small(task, method, samples, targets):
        most.append(len(samples))
        if len(samples) > 2:
            raise error
        return applied(task, method, samples, targets)

    monkeypatch.setattr(measure, "_applied", small)
    found, again = measure.attributions(task, method, samples, [1] * 5)
    assert most == [5, 2, 3, 1, 2]
    assert again == pytest.approx(numbers, rel=1e-5)
    for a, b in zip(found, whole, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
    monkeypatch.setattr(measure, "_applied", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(conserva.Error, match=r"Sample 1 \('a joy .'\), ah\+ln: it does not fit into memory"):
        measure.attributions(task, method, samples, [1] * 5)
