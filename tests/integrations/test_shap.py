"""shap: values plus base values are the output, and shap's own plots and checks take explanations as they are."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("shap", reason="shap is not installed")

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import shap
from PIL import Image

import conserva
import language
import tiny_heads
import tiny_images
from conserva.results.explanations import Explanations
from doc_pages import shown_and_printed
from made_up_explanations import explanation

TEXTS = ["a joy.", "not much of anything, and not a joy.", "dull,  unbelievably\ndull!"]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.Text(tiny_heads.model("bert", "AutoModelForSequenceClassification"), tiny_heads.tokenizer())


@pytest.fixture(scope="module")
def many(task: conserva.Text) -> Explanations:
    return conserva.explain(task, TEXTS, 0)


def labels() -> list[str]:
    return [label.get_text() for label in plt.gca().get_yticklabels()]


# What is converted.


def test_values_and_base_values_are_the_output(many: Explanations) -> None:
    for one in many:
        found, ledger = one.to_shap(), one.ledger
        assert ledger is not None
        assert found.values.tolist() == list(one.scores)
        assert found.base_values == pytest.approx(ledger.positions + ledger.biases + ledger.gap, abs=1e-12)
        assert found.base_values + found.values.sum() == pytest.approx(one.output, abs=1e-12)


def test_what_is_left_out_is_in_the_base_value(many: Explanations) -> None:
    one = many[1].merged().visible()
    found = one.to_shap()
    assert len(found.values) == len(one.features) < len(many[1].features)
    assert found.base_values + found.values.sum() == pytest.approx(one.output, abs=1e-12)


@pytest.mark.parametrize("by_name", [False, True])
def test_shaps_own_check_of_additivity_passes(many: Explanations, by_name: bool) -> None:
    found = many.to_shap(by_name=by_name)
    outputs = np.array([one.output for one in many])
    explainer = SimpleNamespace(expected_value=found.base_values, feature_perturbation="interventional")
    sums = np.array([[values.sum()] for values in found.values])
    shap.TreeExplainer.assert_additivity(explainer, sums, outputs)
    with pytest.raises(Exception, match="Additivity check failed"):
        shap.TreeExplainer.assert_additivity(explainer, sums + 1, outputs)
    np.testing.assert_allclose(sums[:, 0] + found.base_values, outputs, rtol=0, atol=1e-12)


def test_data_are_the_tokens_as_written_and_names_those_of_the_tokenizer(many: Explanations) -> None:
    found = many[2].to_shap()
    assert found.feature_names == list(many[2].features)
    assert found.data[0] == "[CLS] "
    assert "".join(found.data[1:-1]) == TEXTS[2]
    pieces = [i for i, feature in enumerate(many[2].features) if feature.startswith("##")]
    assert pieces
    assert all("#" not in found.data[i] for i in pieces)


def test_a_pair_keeps_both_texts(task: conserva.Text) -> None:
    one = conserva.explain(task, ("a joy.", "a bore."), 0)
    data = "".join(one.to_shap().data)
    assert data.startswith("[CLS] a joy.")
    assert "a bore." in data
    assert "|" not in data


def test_tokens_without_offsets_are_separated() -> None:
    assert list(explanation(["<s>", "a", "joy"]).to_shap().data) == ["<s> ", "a ", "joy "]


def test_white_space_after_characters_without_tokens_is_written() -> None:
    one = replace(explanation(["a", "joy"], text="a\u200b joy\u200b"), offsets=((0, 1), (3, 6)))
    assert list(one.to_shap().data) == ["a ", "joy"]


def test_without_its_name_an_output_can_be_sliced(many: Explanations) -> None:
    """As the page says: shap cannot slice a single explanation whose output has a name."""
    one, corpus = many[1].to_shap(), many.to_shap(by_name=True)
    with pytest.raises(IndexError):
        one[:3]
    one.output_names = corpus.output_names = None
    assert one[:3].values.tolist() == list(many[1].scores[:3])
    assert one.abs.values.tolist() == [abs(score) for score in many[1].scores]
    shap.plots.beeswarm(corpus, order=corpus.abs.max(0), show=False)
    shap.plots.scatter(corpus[:, corpus.abs.mean(0).argsort[-1]], show=False)


def test_the_sinks_score_is_in_the_base_value() -> None:
    one = conserva.explain(conserva.Causal(language.language_model(), language.byte_tokenizer()), "Paris is in France")
    found = one.without_sink().to_shap()
    assert len(found.values) == len(one.features) - 1
    assert found.base_values + found.values.sum() == pytest.approx(one.output, abs=1e-12)


def test_windows_of_a_long_text(task: conserva.Text) -> None:
    text = "a joy, and not much of anything. " * 20
    one = conserva.explain(task, text, 0, windows=(40, 10))
    found = one.to_shap()
    assert found.base_values + found.values.sum() == pytest.approx(one.output, abs=1e-12)
    assert "".join(found.data[1:-1]) == text
    rows = conserva.explain(task, ["a joy.", text], 0, windows=(40, 10)).to_shap()
    np.testing.assert_allclose(rows[1].values, found.values, rtol=0, atol=1e-12)


def test_patches_of_an_image_are_features() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    task = conserva.Image(tiny_images.vit(), tiny_images.processor())
    one = conserva.explain(task, Image.fromarray(pixels))
    found = one.to_shap()
    assert list(found.feature_names) == list(one.features)
    assert found.base_values + found.values.sum() == pytest.approx(one.output, abs=1e-12)
    shap.plots.waterfall(found, show=False)


def test_characters_of_several_tokens_are_written_once() -> None:
    text = "h\u00e9 \U0001f600!"
    task = conserva.Causal(language.language_model(), language.byte_tokenizer())
    one = conserva.explain(task, text)
    pieces = one.to_shap().data
    assert len(pieces) == len(one.features) > len(text) + 2
    assert "".join(pieces).removeprefix(f"{one.features[0]} ") == text


def test_output_names_are_the_target(many: Explanations, task: conserva.Text) -> None:
    assert many[0].to_shap().output_names == many[0].target
    assert many.to_shap().output_names == many[0].target
    mixed = conserva.explain(task, TEXTS, [0, 1, 0])
    assert mixed.to_shap().output_names == f"{mixed[0].target} / {mixed[1].target}"


def test_a_row_is_the_explanation_alone(many: Explanations) -> None:
    rows = many.to_shap()
    for i, one in enumerate(many):
        alone = one.to_shap()
        for name in ("values", "base_values", "data"):
            np.testing.assert_array_equal(getattr(rows[i], name), getattr(alone, name))
        assert rows[i].feature_names == alone.feature_names


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_of_equal_length_stay_rows(many: Explanations, count: int) -> None:
    found = Explanations((many[0],) * count).to_shap()
    assert found.shape == (count, len(many[0].features))
    assert found[0].values.tolist() == list(many[0].scores)
    assert shap.plots.text(found, display=False)


def test_features_by_name_are_summed_and_counted(many: Explanations) -> None:
    found = many.to_shap(by_name=True)
    names = found.feature_names
    assert len(set(names)) == len(names)
    for row, one in enumerate(many):
        for column, name in enumerate(names):
            own = [score for feature, score in zip(one.features, one.scores, strict=True) if feature == name]
            assert found.values[row, column] == pytest.approx(sum(own), abs=1e-15)
            assert found.data[row, column] == len(own)
    assert found.data[1, names.index("not")] == 2


# shap's plots.


def test_text_plot(many: Explanations) -> None:
    page = shap.plots.text(many.to_shap(), display=False)
    assert page.count("inputs</div>") == len(many)
    assert many[0].target in page
    for word in ("joy", "anything"):
        assert word in page
    one = shap.plots.text(many[0].to_shap(), display=False)
    shown = many[0].to_shap()
    for number in (many[0].output, float(shown.base_values)):
        assert f">{number:g}<" in one


def test_waterfall_plot(many: Explanations) -> None:
    one = many[0]
    shap.plots.waterfall(one.to_shap(), max_display=20, show=False)
    assert {f"{text} = {name}" for text, name in zip(one.to_shap().data, one.features, strict=True)} <= set(labels())
    texts = [text.get_text() for axes in plt.gcf().axes for text in axes.texts]
    texts += [label.get_text() for axes in plt.gcf().axes for label in axes.get_xticklabels()]
    shown = f"{one.output:0.3f}".rstrip("0").replace("-", "\N{MINUS SIGN}")
    assert any(shown in text for text in texts)


def test_bar_plot_of_one(many: Explanations) -> None:
    shap.plots.bar(many[0].to_shap(), show=False)
    widths = sorted(patch.get_width() for patch in plt.gca().patches)
    np.testing.assert_allclose(widths, sorted(many[0].scores))


@pytest.mark.parametrize("by_name", [False, True])
def test_bar_plot_of_a_corpus_has_a_bar_for_each_name(many: Explanations, by_name: bool) -> None:
    shap.plots.bar(many.to_shap(by_name=by_name), max_display=100, show=False)
    by_feature: dict[str, list[list[float]]] = {}
    for one in many:
        for name in dict.fromkeys(one.features):
            own = [score for feature, score in zip(one.features, one.scores, strict=True) if feature == name]
            by_feature.setdefault(name, []).append(own)
    if by_name:  # the mean over texts, of sums
        expected = {name: sum(abs(sum(own)) for own in rows) / len(many) for name, rows in by_feature.items()}
    else:  # the mean over occurrences
        expected = {name: float(np.mean(np.abs(np.concatenate(rows)))) for name, rows in by_feature.items()}
    shown = dict(zip(labels(), (patch.get_width() for patch in plt.gca().patches), strict=False))
    assert shown == pytest.approx(expected)


def test_beeswarm_of_a_corpus_has_tokens_by_name(many: Explanations) -> None:
    found = many.to_shap(by_name=True)
    shap.plots.beeswarm(found, max_display=100, show=False)
    assert set(labels()) == set(found.feature_names)


def test_cohorts_of_targets(task: conserva.Text) -> None:
    mixed = conserva.explain(task, TEXTS, [0, 1, 0])
    cohorts = mixed.to_shap(by_name=True).cohorts([one.target for one in mixed])
    shap.plots.bar(cohorts, show=False)
    legend = plt.gca().get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [f"{mixed[0].target} [2]", f"{mixed[1].target} [1]"]


# What is refused.


def test_methods_without_a_ledger_are_refused(task: conserva.Text) -> None:
    plain = conserva.explain(task, TEXTS[0], method="rollout")
    for make in (plain.to_shap, Explanations((plain,)).to_shap):
        with pytest.raises(conserva.Error, match=r"method='rollout' has no ledger: .* such as 'exact'\.$"):
            make()


def test_nothing_to_convert_is_an_error(many: Explanations) -> None:
    with pytest.raises(conserva.Error, match="there are no explanations"):
        many[:0].to_shap()
    none = replace(explanation(["a"]), features=(), scores=(), special=(), words=(), offsets=(), unknown=())
    with pytest.raises(conserva.Error, match="has no features"):
        none.to_shap()


def test_by_name_is_a_keyword(many: Explanations) -> None:
    kinds: Any = inspect.signature(many.to_shap).parameters
    assert kinds["by_name"].kind is inspect.Parameter.KEYWORD_ONLY


def test_the_page_runs_and_shows_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown, printed = shown_and_printed("shap")
    assert printed == shown
    assert {path.name for path in tmp_path.iterdir()} == {"text.html", "waterfall.png"}
