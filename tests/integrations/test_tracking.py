"""What is logged of a result: its own page and picture, the columns of its tables, and numbers that it has."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import conserva
import made_up_audits
import made_up_bias
import made_up_evaluations
import made_up_generations
import made_up_images
import made_up_traces
from conserva.evaluation.result import ADDITIONAL, METRICS
from conserva.integrations.tracking import name_of, step_of, tracked
from conserva.results.renderers import RENDERERS
from every_result import ONE, OTHER, RESULTS
from made_up_explanations import explanation

LEDGER = {"inputs", "positions", "biases", "gap"}


def test_every_result_is_logged() -> None:
    assert set(RESULTS) == set(RENDERERS)


@pytest.mark.usefixtures("figures_once")
@pytest.mark.parametrize("name", RESULTS)
def test_the_page_and_the_figure_are_those_that_are_saved(name: str, tmp_path: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    result = RESULTS[name]()
    parts = tracked(result)
    assert parts.page == result.save(tmp_path / "x.html").read_text(encoding="utf-8")
    if "picture" not in RENDERERS[name]:
        assert parts.figure is None
        return
    assert parts.figure == result.save(tmp_path / "x.png").read_bytes()
    assert image.open(io.BytesIO(parts.figure)).width > 100


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("name", RESULTS)
def test_tables_have_rows_and_metrics_are_numbers(name: str) -> None:
    parts = tracked(RESULTS[name]())
    assert parts.rows
    assert {len(row) for row in parts.rows} == {len(parts.table)}
    assert parts.metrics
    assert all(type(value) is float for value in parts.metrics.values())


@pytest.mark.parametrize("name", ["Explanation", "Explanations", "Comparison"])
def test_tables_are_those_of_pandas(name: str) -> None:
    pandas = pytest.importorskip("pandas")
    result = RESULTS[name]()
    expected = result.to_pandas()
    found = pandas.DataFrame(tracked(result).table).astype(expected.dtypes.to_dict())
    pandas.testing.assert_frame_equal(found, expected)


def test_metrics_of_an_explanation() -> None:
    found = tracked(ONE).metrics
    assert set(found) == {"output", "probability", *LEDGER, "gap_share"}
    assert found["output"] == ONE.output
    assert found["gap_share"] == ONE.ledger.gap_share
    assert all(found[entry] == getattr(ONE.ledger, entry) for entry in LEDGER)
    assert tracked(OTHER).metrics == {"output": OTHER.output}  # the rest is unknown
    assert tracked(made_up_images.explained()).metrics["output"] == made_up_images.explained().output


def test_metrics_of_many_are_means_and_the_largest_gap() -> None:
    larger = explanation(["[CLS]", "joy"], output=2.5, probability=0.5)
    found = tracked(conserva.Explanations((ONE, larger, OTHER))).metrics
    assert found == {
        "explanations": 3,
        "mean_output": (ONE.output + 2.5 + OTHER.output) / 3,
        "mean_probability": (ONE.probability + 0.5) / 2,
        "largest_gap_share": max(ONE.ledger.gap_share, larger.ledger.gap_share),
    }
    assert tracked(conserva.Explanations(())).metrics == {"explanations": 0}


def test_metrics_of_a_comparison_are_those_of_its_methods() -> None:
    found = tracked(RESULTS["Comparison"]()).metrics
    of_one = {f"exact/{name}": value for name, value in tracked(ONE).metrics.items()}
    assert found == {**of_one, "gae/output": OTHER.output}
    nothing = tracked(conserva.Comparison((), {"a-flow": "needs maps"}))
    assert nothing.metrics == nothing.table == {}


def test_a_generation_has_a_row_for_each_token() -> None:
    generation = made_up_generations.generation()
    parts = tracked(generation)
    assert parts.table["output"] == [step.output for step in generation.steps]
    assert parts.table["scores"] == [list(step.scores) for step in generation.steps]
    assert parts.table["ledger_gap"] == [step.ledger.gap for step in generation.steps]
    assert parts.metrics["explanations"] == len(generation.steps)


def test_a_trace_has_a_column_for_each_layer() -> None:
    trace = made_up_traces.SHOWN
    parts = tracked(trace)
    for layer, scores in zip(trace.layers, trace.scores, strict=True):
        assert parts.table[layer] == list(scores)
    assert parts.metrics == tracked(trace.explanation()).metrics


@pytest.mark.usefixtures("without_figures")
def test_an_evaluation_has_every_metric_of_every_method() -> None:
    evaluation = made_up_evaluations.evaluation()
    parts = tracked(evaluation)
    assert parts.metrics["samples"] == evaluation.samples
    for i, result in enumerate(evaluation.methods):
        for metric in METRICS:
            interval = getattr(result, metric)
            assert parts.metrics[f"{result.method}/{metric}"] == interval.mean == parts.table[metric][i]
            assert parts.table[f"{metric}_low"][i] == interval.low
            assert parts.table[f"{metric}_high"][i] == interval.high
        assert parts.metrics[f"{result.method}/distance_from_output"] == result.conservation.distance
        for name in ("correlation", "slope"):
            value = getattr(result.conservation, name)
            assert parts.metrics.get(f"{result.method}/sum_{name}") == value == parts.table[f"sum_{name}"][i]
    assert {name.rpartition("/")[2] for name in parts.metrics} - {"samples", "accuracy"} == {
        *METRICS, "distance_from_output", "sum_correlation", "sum_slope",
    }  # fmt: skip


@pytest.mark.usefixtures("without_figures")
def test_an_evaluation_has_the_additional_metrics_that_were_measured() -> None:
    evaluation = made_up_evaluations.with_additional()
    parts = tracked(evaluation)
    for i, result in enumerate(evaluation.methods):
        for metric in ADDITIONAL:
            interval = getattr(result, metric)
            assert parts.metrics[f"{result.method}/{metric}"] == interval.mean == parts.table[metric][i]
            assert parts.table[f"{metric}_low"][i] == interval.low
    assert not set(ADDITIONAL) & set(tracked(made_up_evaluations.evaluation()).table)


@pytest.mark.usefixtures("without_figures")
def test_an_audit_has_its_ledger_and_its_components() -> None:
    audit = made_up_audits.audit(layers=1)
    parts = tracked(audit)
    assert {name: parts.metrics[name] for name in LEDGER} == vars(audit.ledger)
    assert parts.metrics["gap_share"] == audit.gap_share()
    assert parts.table["leak"] == [component.leak for component in audit.components]
    assert parts.table["module"] == [component.module for component in audit.components]


@pytest.mark.usefixtures("without_figures")
def test_a_study_has_its_groups_differences_and_words() -> None:
    study = made_up_bias.study(mentions=24)
    parts = tracked(study)
    for group in study.groups:
        assert parts.metrics[f"{group.name}/mean"] == group.mean.mean
    for pair in study.differences:
        assert parts.metrics[f"{pair.a} - {pair.b}/difference"] == pair.difference.mean
        assert parts.metrics[f"{pair.a} - {pair.b}/corrected"] == pair.corrected
        assert parts.metrics[f"{pair.a} - {pair.b}/flagged"] == pair.flagged
    assert parts.table["name"] == [entity.name for entity in study.entities]
    assert parts.table["mean_low"] == [entity.mean.low for entity in study.entities]


def test_without_matplotlib_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conserva.integrations.tracking.find_spec", lambda name: None)
    assert tracked(ONE).figure is None


@pytest.mark.parametrize("given", [None, "exact", {"a": 1}, [ONE]], ids=["None", "text", "dict", "list"])
def test_other_objects_are_refused(given: Any) -> None:
    with pytest.raises(conserva.Error, match=r"^result is of type \w+: give an Explanation, .* or BiasStudy"):
        tracked(given)


def test_comparisons_without_a_common_table_are_refused() -> None:
    with pytest.raises(conserva.Error, match="different features"):
        tracked(conserva.Comparison((ONE, explanation(["joy"], method="gi"))))


def test_names() -> None:
    assert name_of(ONE, None) == "explanation"
    assert name_of(RESULTS["BiasStudy"](), None) == "bias-study"
    assert name_of(ONE, "a/b") == "a/b"
    for wrong in ("", " ", "/", 3, "/a", "a//b", "a/../b", "a/."):
        with pytest.raises(conserva.Error, match="give a name"):
            name_of(ONE, wrong)  # type: ignore[arg-type]


def test_steps() -> None:
    assert step_of(None) is None
    assert step_of(3) == step_of(np.int64(3)) == 3
    for wrong in (1.5, "3"):
        with pytest.raises(conserva.Error, match="give an integer"):
            step_of(wrong)
