"""What all results have in common: they are saved, loaded, and shown in terminals and notebooks."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import conserva
import made_up_audits
import made_up_bias
import made_up_evaluations
import made_up_generations
import made_up_traces
from conserva.results.renderers import RENDERERS
from conserva.results.result import Result
from made_up_explanations import explanation

RESULTS: dict[str, Callable[[], Any]] = {
    "Explanation": lambda: explanation(["a", "joy"]),
    "Explanations": lambda: conserva.Explanations((explanation(["a", "joy"]),)),
    "Comparison": lambda: conserva.Comparison((explanation(["a", "joy"]),), {"a-flow": "needs maps"}),
    "Generation": made_up_generations.generation,
    "Trace": lambda: made_up_traces.SHOWN,
    "Audit": lambda: made_up_audits.audit(layers=1),
    "Evaluation": made_up_evaluations.evaluation,
    "BiasStudy": lambda: made_up_bias.study(mentions=24),
}


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def test_every_result_has_renderers() -> None:
    def all_below(kind: type) -> set[str]:
        return {kind.__name__}.union(*map(all_below, kind.__subclasses__()))

    for name in conserva.__all__:
        getattr(conserva, name)  # which imports it
    assert set(RESULTS) == set(RENDERERS) == {name for name in all_below(Result) if name[0] != "_"} - {"Result"}
    assert set(RESULTS) < set(conserva.__all__)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_loaded_as_it_was_saved(name: str, tmp_path: Path) -> None:
    one = RESULTS[name]()
    assert type(one).__name__ == name
    path = one.save(tmp_path / "x.json")
    again = type(one).load(path)
    assert again == one
    assert type(one).from_json(one.to_json()).to_dict() == one.to_dict()
    assert len(repr(one)) < 300
    assert repr(one).startswith(f"{name}(")


@pytest.mark.usefixtures("figures_once")
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_shown_everywhere(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = RESULTS[name]()
    one.show()
    assert capsys.readouterr().out
    page = one.save(tmp_path / "x.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    if "picture" in RENDERERS[name]:
        assert one.save(tmp_path / "x.svg").stat().st_size > 1000
    else:
        with pytest.raises(conserva.Error, match=r"ends in '.svg': choose .json or .html"):
            one.save(tmp_path / "x.svg")
    shown = one._repr_html_()
    if "notebook" in RENDERERS[name]:
        assert shown.partition("</style>")[2].strip() in page
    else:  # the page, whatever it holds, in one element that it cannot leave
        [_, (tag, attributes)] = Tags(shown).found  # after its style
        assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
        base = "<base href='about:srcdoc'>"  # a link to a section stays in the frame
        assert re.fullmatch(r"<style>[^<]*</style>", attributes["srcdoc"].removeprefix(base + page))
