"""The mistakes that a new user makes: the message names what was given, what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import conserva
from conserva.cli import main

MISTAKES: dict[str, tuple[Callable[[conserva.Text], Any], str]] = {
    "a name": (lambda task: conserva.explain("sentiment", "a joy."), "task='sentiment', which is not a task: load"),
    "a model": (
        lambda task: conserva.explain(task.model, "a joy."),
        r"task is a BertForSequenceClassification, which is not a task: .*conserva\.Text\(model, tokenizer\)",
    ),
    "a number among texts": (
        lambda task: conserva.explain(task, ["a joy.", 3]),
        r"inputs\[1\]=3 is not a string: sentiment takes texts",
    ),
    "a misspelled rule set": (
        lambda task: conserva.relevance(task.model, {}, rules="exakt"),
        r"rules='exakt' is unknown\. Did you mean 'exact'\? Choose one of 'gi'",
    ),
    "a misspelled method": (
        lambda task: conserva.explain(task, "a joy.", method="exakt"),
        r"method='exakt' is unknown\. Did you mean 'exact'\?",
    ),
    "an unknown label": (
        lambda task: conserva.explain(task, "a joy.", "happy"),
        "'happy' is not one of the model's labels: 'negative', 'positive'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained_in_a_line(name: str) -> None:
    make, says = MISTAKES[name]
    with pytest.raises(conserva.Error, match=says) as error:
        make(conserva.load())
    assert len(str(error.value)) < 250


def test_a_relevance_has_a_short_repr() -> None:
    task = conserva.load()
    result = conserva.relevance(task.model, task.tokenizer(["a joy.", "a bore."], return_tensors="pt"), 1)
    assert repr(result) == "Relevance(rules='exact', samples=2, values={input_ids: (2, 5, 192)})"


@pytest.mark.parametrize("command", [["explain", "a joy."], ["compare", "a joy."], ["audit"]])
def test_a_page_ends_in_html(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--html", "page.txt"]) == 1
    out, err = capsys.readouterr()
    assert err == "conserva: --html page.txt ends in '.txt': choose a name that ends in .html.\n"
    assert not out


def test_without_colours_the_ledger_is_drawn_with_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "not a bad movie at all."]) == 0
    out = capsys.readouterr().out
    assert set("█▓▒") <= set(out)
    assert "= output" in out
    assert "colours" not in out
