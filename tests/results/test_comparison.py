"""Several explanations as one result: of many inputs, or of one input by many methods."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import conserva
from conserva import Comparison, Explanation, Explanations
from conserva.attribution.registry import methods
from conserva.cli import main
from conserva.engine.rules import RULE_SETS

TEXTS = ["a joy.", "not much of anything.", "dull"]


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.load()


@pytest.fixture(scope="module")
def several(task: conserva.Text) -> Explanations:
    return conserva.explain(task, TEXTS)


@pytest.fixture(scope="module")
def compared(task: conserva.Text) -> Comparison:
    return conserva.compare(task, TEXTS[0], methods=["gi", "exact", "random:seed=3"])


def test_a_list_of_inputs_gives_a_sequence_that_is_a_result(several: Explanations) -> None:
    assert isinstance(several, Explanations)
    assert [one.text for one in several] == TEXTS
    assert several == list(several)
    assert several != list(several)[:2]
    assert several[1].text == TEXTS[1]
    assert isinstance(several[1:], Explanations)
    assert several[1:] == [several[1], several[2]]
    assert repr(several) == "Explanations(3 explanations)"


def test_no_inputs_give_no_explanations(task: conserva.Text) -> None:
    assert conserva.explain(task, []) == []


def test_a_comparison_has_one_explanation_for_each_method(task: conserva.Text, compared: Comparison) -> None:
    assert compared.methods == ("gi", "exact", "random:seed=3")
    for one in compared:
        assert one == conserva.explain(task, TEXTS[0], method=one.method)
        assert compared.of(one.method) is one
    assert compared.refused == {}
    with pytest.raises(
        conserva.Error, match="method='ig' is not in this comparison, which has gi, exact, random:seed=3"
    ):
        compared.of("ig")


def test_a_method_that_does_not_apply_is_told(task: conserva.Text) -> None:
    found = conserva.compare(conserva.load("digits"), conserva_digit(), methods=["gi", "attn-gradcam", "gi"])
    assert {*found.methods, *found.refused} == {"gi", "attn-gradcam"}
    with pytest.raises(conserva.Error, match="no class"):
        conserva.compare(task, TEXTS[0], "no class", methods=["gi", "exact"])


def conserva_digit() -> object:
    from conserva.datasets.drawn import drawn_digit

    return drawn_digit(7)


@pytest.mark.parametrize(
    ("given", "methods", "message"),
    [
        (TEXTS, ["gi"], "is not a single text that sentiment accepts: compare methods on one input"),
        (TEXTS[0], "gi", r"methods='gi' is a string: give a list of names, such as \['gi'\]"),
        (TEXTS[0], [], r"methods=\[\] is empty"),
        (TEXTS[0], ["gi", "exakt"], "method='exakt' is unknown. Did you mean 'exact'"),
    ],
)
def test_wrong_comparisons_are_refused(task: conserva.Text, given: object, methods: object, message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        conserva.compare(task, given, methods=methods)  # type: ignore[arg-type]


def test_all_methods_are_compared_if_none_are_named(task: conserva.Text) -> None:
    found = conserva.compare(task, "a joy.")
    assert [*found.methods, *found.refused] == list(methods())


@pytest.mark.parametrize("kind", ["several", "compared"])
def test_they_are_saved_loaded_and_shown(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = request.getfixturevalue(kind)
    for name in ("x.json", "x.html", "x.svg", "x.png"):
        assert found.save(tmp_path / name).stat().st_size > 500
    again = type(found).load(tmp_path / "x.json")
    assert again == found
    assert again.to_dict() == found.to_dict() == json.loads(found.to_json())
    assert found.to_dict()["schema"] == f"conserva/{'explanations' if kind == 'several' else 'comparison'}/1"
    found.show()
    shown = capsys.readouterr().out
    assert all(one.target in shown and str(one.method) in shown for one in found)
    assert found._repr_html_().count("<section>") == (tmp_path / "x.html").read_text().count("<section>") == len(found)


def test_refusals_are_saved_and_shown(compared: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    found = replace(compared, refused={"a-flow": "needs <maps>"})
    assert found != compared
    assert Comparison.from_json(found.to_json()) == found
    found.show()
    assert "needs <maps>" in capsys.readouterr().out
    assert "needs &lt;maps&gt;" in found._repr_html_()
    with pytest.raises(conserva.Error, match="It was refused: needs <maps>"):
        found.of("a-flow")


def test_two_explanations_by_one_method_are_no_comparison(compared: Comparison) -> None:
    twice = replace(compared, explanations=compared.explanations[:1] * 2)
    with pytest.raises(conserva.Error, match="not a valid comparison"):
        Comparison.from_json(twice.to_json())


def test_each_explanation_can_be_changed(several: Explanations, compared: Comparison) -> None:
    assert several.each(Explanation.visible) == [one.visible() for one in several]
    assert compared.each(Explanation.merged).methods == compared.methods


def test_the_command_prints_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compared: Comparison
) -> None:
    page = tmp_path / "x.html"
    arguments = ["compare", TEXTS[0], "--methods", "gi,exact,random:seed=3", "--json", "--html", str(page)]
    assert main(arguments) == 0
    printed = Comparison.from_json(capsys.readouterr().out)
    assert [(one.method, one.scores, one.ledger) for one in printed] == [
        (one.method, one.scores, one.ledger) for one in compared
    ]
    assert "weights" in printed[0].provenance
    assert page.read_text().count("<section>") == 3


def test_a_rule_set_is_a_method_and_provenance_names_its_rules(task: conserva.Text) -> None:
    assert set(RULE_SETS) < set(methods())
    found = conserva.explain(task, "a joy.", method="exact:gamma=0.1").provenance["rules"]
    assert found == {
        **RULE_SETS["exact"].to_dict(),
        "name": "exact (gamma=0.1, linear=gamma)",
        "linear": "gamma",
        "gamma": 0.1,
    }
    assert conserva.explain(task, "a joy.", method="rollout").provenance["rules"] is None


def test_a_result_has_a_short_repr(several: Explanations, compared: Comparison) -> None:
    assert repr(several[0]).startswith("Explanation(target='positive', output=")
    assert repr(compared).startswith("Comparison(target='positive', model='sentiment', methods=('gi', 'exact'")
    assert all(len(repr(one)) < 200 for one in (several[0], several, compared))
