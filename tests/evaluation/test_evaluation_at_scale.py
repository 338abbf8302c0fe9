"""Evaluations of many samples: samples share calls of the model and of methods; the benchmark of their cost."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import conserva
from conserva.evaluation import measure, samples
from conserva.evaluation.journal import NAME, samples_of
from conserva.evaluation.stream import Stream
from reviews import REVIEWS
from script_files import loaded

pytestmark = pytest.mark.usefixtures("few_resamples")

loaded("benchmarks/timing.py")
bench_sentences = loaded("benchmarks/evaluate.py").SENTENCES
scale = loaded("benchmarks/evaluate_scale.py")


def test_samples_share_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    applied, run = measure._applied, Stream._run

    def counted_applied(task, method, samples, targets):
        calls[method.name] += 1
        return applied(task, method, samples, targets)

    def counted_run(stream, parts):
        calls["forward"] += 1
        return run(stream, parts)

    monkeypatch.setattr(measure, "_applied", counted_applied)
    monkeypatch.setattr(Stream, "_run", counted_run)
    methods, task = ["gi", "rollout"], conserva.load()
    for count in (8, 24):
        calls.clear()
        conserva.evaluate(task, scale.sentences(count), methods, reference=False, batch_tokens=4096, tokens=65536)
        # one forward pass for the complete inputs, one for all masked ones
        assert calls == {"gi": 1, "rollout": 1, "forward": 2}


@pytest.mark.parametrize("method", ["random", "ah+ln"])
def test_scores_and_curves_of_a_sample_do_not_depend_on_the_others(method: str, tmp_path: Path) -> None:
    task, texts = conserva.load(), [*REVIEWS, *REVIEWS[:2], *scale.sentences(6)]
    for name, some, budgets in [
        ("together", texts, {}),
        ("alone", texts, {"batch_tokens": 1, "tokens": 1}),
        ("reversed", texts[::-1], {}),
    ]:
        conserva.evaluate(task, some, [method], random_seeds=2, reference=False, out=tmp_path / name, **budgets)
    together, alone, reverse = ([*samples_of(tmp_path / name / NAME)] for name in ("together", "alone", "reversed"))
    for found in (alone, reverse[::-1]):
        for (scores, curves), (expected_scores, expected_curves) in zip(found, together, strict=True):
            for name, values in scores["scores"].items():
                assert values == pytest.approx(expected_scores["scores"][name], abs=1e-5)
            for name, points in curves["methods"].items():
                for curve, values in points.items():
                    assert values == pytest.approx(expected_curves["methods"][name][curve], abs=1e-5)


def test_samples_that_are_not_kept_are_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    task, texts = conserva.load(), scale.sentences(12)
    expected = conserva.evaluate(task, texts, ["gi"], reference=False)
    monkeypatch.setattr(samples, "KEPT", 5)
    assert conserva.evaluate(task, texts, ["gi"], reference=False) == expected


def test_the_benchmark_measures_every_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "scale.json"
    scale.main(["--sizes", "6", "2", "--rounds", "2", "--out", str(out)])
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [(row["sentences"], row["rounds"]) for row in found["rows"]] == [(2, 2), (6, 1)]
    assert found["ratio"] == {"of": [6, 2], "ms": found["rows"][1]["ms"] / found["rows"][0]["ms"]}
    assert all(0 < row["fastest_ms"] <= row["ms"] <= row["slowest_ms"] for row in found["rows"])
    assert capsys.readouterr().out.count("ms each") == 2
    with pytest.raises(SystemExit):
        scale.main(["--sizes", "0", "--out", str(out)])


def test_sentences_of_the_benchmark() -> None:
    many = scale.sentences(1000)
    assert scale.sentences(30) == many[:30]
    assert len(set(many)) > 980
    lengths = [len(sentence.split()) for sentence in bench_sentences]
    assert [len(sentence.split()) for sentence in many] == lengths * 50
