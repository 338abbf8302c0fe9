"""A contrast splits the difference of two outputs of a ranking among the tokens of the query and of both passages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")

from torch import Tensor, nn

import conserva
from conserva.integrations.ranking import contrast, explain_ranking
from conserva.results.explanations import Explanations
from passages import PASSAGES, QUERY, index_of
from sentence_models import cross_encoder, sentence_encoder

EXACT = {"rel": 1e-6, "abs": 1e-6}
ENTRIES = ("inputs", "positions", "biases", "gap")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cross_encoder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return sentence_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def ranking(model: Any) -> Explanations:
    return explain_ranking(model, QUERY, PASSAGES)


class Difference(nn.Module):
    """A cross-encoder whose output is the logit of one pair minus that of another."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.training = False

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, other_input_ids: Tensor, other_type_ids: Tensor
    ) -> Any:
        first: Tensor = self.network(input_ids=input_ids, token_type_ids=token_type_ids).logits
        second: Tensor = self.network(input_ids=other_input_ids, token_type_ids=other_type_ids).logits
        return first - second


@pytest.mark.parametrize("method", ["exact", "ah+ln", "gi"])
@pytest.mark.parametrize(("above", "below"), [(0, 1), (0, 3), (2, 1)])
def test_a_contrast_is_the_relevance_of_a_model_of_the_difference(
    model: Any, method: str, above: int, below: int
) -> None:
    found = explain_ranking(model, QUERY, PASSAGES, method=method)
    why = contrast(found[above], found[below])
    first, second = (model.preprocess([(QUERY, PASSAGES[index_of(found[i])])]) for i in (above, below))
    inputs = {"input_ids": first["input_ids"], "token_type_ids": first["token_type_ids"]}
    inputs |= {"other_input_ids": second["input_ids"], "other_type_ids": second["token_type_ids"]}
    whole = conserva.relevance(Difference(model.model), inputs, rules=method)
    border = why.sections[0][1]
    mine, other = (whole.scores(name)[0].tolist() for name in ("input_ids", "other_input_ids"))
    assert why.output == pytest.approx(float(whole.output[0]), **EXACT)
    expected = [one + another for one, another in zip(mine[:border], other[:border], strict=True)]
    assert list(why.scores) == pytest.approx([*expected, *mine[border:], *other[border:]], **EXACT)
    assert why.ledger is not None
    assert whole.ledger is not None
    for entry in ENTRIES[:-1]:
        assert getattr(why.ledger, entry) == pytest.approx(float(getattr(whole.ledger, entry)[0]), **EXACT)


def test_a_contrast_adds_up(ranking: Explanations) -> None:
    why = contrast(ranking[0], ranking[-1])
    first, second = ranking[0].ledger, ranking[-1].ledger
    assert why.ledger is not None
    assert first is not None
    assert second is not None
    assert why.output == ranking[0].output - ranking[-1].output > 0
    for entry in ENTRIES:
        assert getattr(why.ledger, entry) == getattr(first, entry) - getattr(second, entry)
    assert sum(why.scores) == pytest.approx(why.ledger.inputs, abs=1e-6)
    assert why.ledger.output == pytest.approx(why.output, abs=1e-12)


def test_the_parts_of_a_contrast(ranking: Explanations) -> None:
    above, below = ranking[0], ranking[2]
    why, border = contrast(above, below), above.sections[0][1]
    names = [f"passage {index_of(one)}" for one in (above, below)]
    assert [name for name, _ in why.sections] == ["query", *names]
    assert why.target == " - ".join(names)
    assert (why.probability, why.classes) == (None, ())
    assert "passage" not in why.provenance
    assert why.features == above.features + below.features[border:]
    assert why.scores[border : len(above.features)] == above.scores[border:]
    assert why.scores[len(above.features) :] == tuple(-score for score in below.scores[border:])
    assert why.text == f"{QUERY} | {PASSAGES[index_of(above)]} | {PASSAGES[index_of(below)]}"


def test_the_tokens_of_a_contrast_are_where_they_were_written(ranking: Explanations) -> None:
    for above in ranking:
        for below in ranking:
            why, border = contrast(above, below), above.sections[0][1]
            written = [None if span is None else why.text[slice(*span)] for span in why.offsets]
            apart = [
                None if span is None else one.text[slice(*span)]
                for one, first in ((above, 0), (below, border))
                for span in one.offsets[first:]
            ]
            assert written == apart


def test_the_contrast_of_the_other_is_its_negative(ranking: Explanations) -> None:
    why, other = contrast(ranking[0], ranking[1]), contrast(ranking[1], ranking[0])
    border, mine, its = (size for _, size in why.sections)
    assert other.output == -why.output
    assert other.scores[:border] == tuple(-score for score in why.scores[:border])
    assert other.scores[border : border + its] == tuple(-score for score in why.scores[border + mine :])


@pytest.mark.parametrize("change", ["merged", "visible", "sentences"])
def test_a_contrast_of_words_is_the_words_of_a_contrast(ranking: Explanations, change: str) -> None:
    changed = contrast(*(getattr(one, change)() for one in ranking[:2]))
    whole = getattr(contrast(*ranking[:2]), change)()
    assert changed.features == whole.features
    assert list(changed.scores) == pytest.approx(list(whole.scores))


@pytest.mark.parametrize("ending", ["json", "html", "png"])
def test_a_contrast_is_saved_like_any_explanation(ranking: Explanations, tmp_path: Path, ending: str) -> None:
    why = contrast(ranking[0], ranking[1])
    path = why.save(tmp_path / f"why.{ending}")
    if ending == "json":
        assert conserva.Explanation.load(path) == why
    elif ending == "html":
        page = path.read_text(encoding="utf-8")
        assert all(name in page for name, _ in why.sections)
    else:
        assert path.stat().st_size > 1000


def test_a_ranking_is_saved_as_a_table_and_loaded(ranking: Explanations, tmp_path: Path) -> None:
    again = Explanations.load(ranking.save(tmp_path / "ranking.json"))
    assert again == ranking
    assert contrast(again[0], again[1]) == contrast(ranking[0], ranking[1])
    table = ranking.to_pandas()
    assert table["output"].tolist() == [one.output for one in ranking]
    assert contrast(*ranking[:2]).to_pandas()["section"].unique().tolist() == [
        name for name, _ in contrast(*ranking[:2]).sections
    ]


def test_a_contrast_is_shown(ranking: Explanations, capsys: pytest.CaptureFixture[str]) -> None:
    why = contrast(ranking[0], ranking[1])
    why.show()
    shown = capsys.readouterr().out
    assert why.target in shown
    assert shown.index("query\n") < shown.index(f"{why.sections[1][0]}\n") < shown.index(f"{why.sections[2][0]}\n")


def test_slow_tokenizers_without_offsets(encoder: Any) -> None:
    found = explain_ranking(encoder, QUERY, PASSAGES).each(
        lambda one: replace(one, offsets=(None,) * len(one.features))
    )
    why = contrast(found[0], found[1])
    assert why.offsets == (None,) * len(why.features)
    assert why.text.startswith(found[0].text)


# What is refused.


def plain_pair() -> conserva.Explanation:
    return conserva.explain(conserva.load(), ("a joy?", "a joy."), 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda one: one.text, "is not the explanation of a pair of texts: give two of a ranking"),
        (lambda one: replace(one, sections=()), "is not the explanation of a pair of texts"),
        (lambda one: replace(one, ledger=None, method="rollout"), "method='rollout' has no ledger: .* 'exact'"),
        (lambda one: replace(one, method="gi"), "have different methods, 'exact' and 'gi'"),
        (lambda one: replace(one, model="other"), "have different models"),
        (lambda one: replace(one, target="other"), "are for different targets, 'LABEL_0' and 'other'"),
        (lambda one: one.merged(), "have different tokens in the query: .* `merged` or `visible`"),
        (lambda one: plain_pair(), "have different models"),
    ],
)
def test_explanations_of_another_ranking_are_refused(
    ranking: Explanations, change: Callable[[conserva.Explanation], Any], says: str
) -> None:
    with pytest.raises(conserva.Error, match=says):
        contrast(ranking[0], change(ranking[1]))


def test_other_queries_are_refused(model: Any, ranking: Explanations) -> None:
    other = explain_ranking(model, "another query", PASSAGES)
    with pytest.raises(conserva.Error, match="have different tokens in the query"):
        contrast(ranking[0], other[0])
