"""Features that come from several inputs: how they are told apart, merged, and left out."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
import torch
from rich.console import Console

from conserva import Explanation
from conserva.errors import NotApplicable
from conserva.results.explanation import Sink
from conserva.tasks.loading import load
from conserva.tasks.task import Encoded
from conserva.views.explanation_page import page
from conserva.views.terminal import show

ONE = Explanation(
    features=("[CLS]", "tr", "##ans", "late", "<s>", "über", "##setzen"),
    scores=(0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    special=(True, False, False, False, True, False, False),
    words=(None, 0, 0, 1, None, 1, 1),
    text="translate",
    target="x",
    output=63.5,
    probability=None,
    ledger=None,
    method="exact",
    model="m",
    sections=(("source", 4), ("answer so far", 3)),
)


def test_words_are_merged_within_their_section() -> None:
    merged = ONE.merged()
    assert merged.features == ("[CLS]", "trans", "late", "<s>", "übersetzen")
    assert merged.scores == (0.5, 3.0, 4.0, 8.0, 48.0)
    assert merged.sections == (("source", 3), ("answer so far", 2))
    bordering = replace(ONE, words=(None, 0, 0, 1, 1, 1, 1))
    assert bordering.merged().sections == (("source", 3), ("answer so far", 1))


def test_what_is_left_out_is_no_longer_counted() -> None:
    assert ONE.visible().sections == (("source", 3), ("answer so far", 2))
    assert ONE.visible().merged().sections == (("source", 2), ("answer so far", 1))


def test_sections_are_stored() -> None:
    assert Explanation.from_json(ONE.to_json()) == ONE
    older = {key: value for key, value in json.loads(ONE.to_json()).items() if key != "sections"}
    assert Explanation.from_json(json.dumps(older)).sections == ()


def test_scores_of_several_inputs_stand_side_by_side() -> None:
    class Two(Encoded):
        @property
        def parts(self) -> tuple[int, ...]:
            return (2, 1)

    task = load()
    task.features = ("a_input_ids", "b_input_ids")  # type: ignore[misc]
    inputs = {"a_input_ids": torch.zeros(2, 4), "b_input_ids": torch.zeros(2, 3)}
    scores = {"a_input_ids": torch.arange(8.0).view(2, 4), "b_input_ids": torch.arange(10.0, 16.0).view(2, 3)}
    joined = task.feature_scores(inputs, scores)
    own = task.feature_positions(Two("", ("x", "y", "z"), (False,) * 3, (0, 1, 2)), inputs)
    assert joined[1][torch.from_numpy(own)].tolist() == [4, 5, 13]
    assert np.array_equal(own, [0, 1, 4])
    with pytest.raises(NotApplicable, match="attends over other positions"):
        task.feature_scores(inputs, {"a_input_ids": scores["a_input_ids"]})


SINK = replace(ONE, sections=(), sink=Sink.of(0, ("The", "x"), (-30.0, 10.0)))


def test_the_sink_is_measured_and_left_out_of_the_picture_alone() -> None:
    assert SINK.sink == Sink("The", -30.0, 0.75, 0)
    left = SINK.without_sink()
    assert left.features == ONE.features[1:]
    assert left.sink == Sink("The", -30.0, 0.75, None)
    assert (left.output, left.ledger) == (SINK.output, SINK.ledger)
    assert left.without_sink() is left
    assert ONE.without_sink() is ONE
    assert Sink.of(0, ("a",), (0.0,)).share == 0
    assert SINK.merged().sink == SINK.sink
    assert SINK.visible().sink == left.sink  # here the first token is none of the text's own
    assert Explanation.from_json(left.to_json()) == left


def test_views_show_sections_apart_and_tell_of_the_sink() -> None:
    one = replace(ONE, sink=Sink("[CLS]", 0.5, 0.0079, 0))
    html = page([one])
    assert html.index("<h3>source</h3>") < html.index(">late<") < html.index("<h3>answer so far</h3>")
    assert html.index("<h3>answer so far</h3>") < html.index(">über<")
    for shown in (unescape(html), _printed(one)):
        assert "the first token '[CLS]' has +0.500, 1% of the absolute relevance" in shown
        assert "it is not shown" not in shown
    assert "it is not shown, but counted in the ledger" in _printed(one.without_sink())
    lines = _printed(one).splitlines()
    assert [line.strip() for line in lines].index("source") < [line.strip() for line in lines].index("answer so far")


def _printed(one: Explanation) -> str:
    console = Console(record=True, width=200, file=io.StringIO())
    show([one], console)
    return console.export_text()
