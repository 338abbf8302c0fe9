"""Streams of inputs: explanations in order, and errors in the place of inputs that fail."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

import conserva
from conserva.explaining import stream
from conserva.explaining.stream import explain_stream

TEXTS = ["a joy.", "a bore from start to end.", "not much of anything.", "witty"] * 3


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.load()


def explained(task: conserva.Text, inputs: Any, target: Any = None, **options: Any) -> list[Any]:
    return list(explain_stream(task, iter(inputs), lambda chunk: target, **options))


def read_ahead(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams read so many inputs ahead, however long they take."""
    for name, value in (("FEWEST", count), ("MOST", count), ("SECONDS", math.inf)):
        monkeypatch.setattr(stream, name, value)


@pytest.mark.parametrize(
    ("size", "seconds", "following"),
    [(16, 0.1, 32), (512, 0.1, 512), (300, 1.0, 512), (64, 3.0, 64), (64, 6.0, 32), (3, 99.0, 1), (1, 99.0, 1)],
)
def test_fewer_inputs_are_read_ahead_if_they_take_long(size: int, seconds: float, following: int) -> None:
    assert stream._next_size(size, seconds) == following


def test_a_slow_stream_yields_what_is_done(task: conserva.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SECONDS", -1.0)
    read: list[str] = []
    outcomes = explain_stream(task, (read.append(text) or text for text in TEXTS * 3), lambda chunk: None)
    for _ in range(stream.FEWEST + 1):
        next(outcomes)
    assert len(read) == stream.FEWEST + stream.FEWEST // 2


def test_a_stream_is_explained_like_a_list(task: conserva.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    read_ahead(5, monkeypatch)
    found = explained(task, TEXTS, method="gi")
    expected = conserva.explain(task, TEXTS, method="gi")
    assert [one.text for one in found] == TEXTS
    for one, other in zip(found, expected, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


def test_inputs_that_fail_have_their_error_in_their_place(task: conserva.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    for at_once in (1, 3, 512):
        read_ahead(at_once, monkeypatch)
        given: list[Any] = ["", "a joy.", "good " * 600, conserva.Error("unreadable"), 5, "a bore.", "\ud800", "a joy."]
        found = explained(task, given)
        kinds = ["ok" if isinstance(one, conserva.Explanation) else str(one) for one in found]
        assert kinds[1] == kinds[5] == kinds[7] == "ok"
        for position, says in ((0, "is empty"), (2, "--truncate"), (3, "unreadable"), (4, "5"), (6, "half a char")):
            assert says in kinds[position]


def test_an_input_that_the_model_fails_on_is_found(task: conserva.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    explain_with = stream.explain_with

    def fails(recorder: Any, task: Any, chunk: list[str], *rest: Any, **options: Any) -> Any:
        if "witty" in chunk:
            raise conserva.Error("nan")
        return explain_with(recorder, task, chunk, *rest, **options)

    monkeypatch.setattr(stream, "explain_with", fails)
    found = explained(task, TEXTS)
    assert [isinstance(one, conserva.Error) for one in found] == [text == "witty" for text in TEXTS]


@pytest.mark.parametrize("first", [[], ["", "good " * 600]])
def test_an_error_of_all_inputs_is_raised_at_once(
    task: conserva.Text, first: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    explain_with = stream.explain_with

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments[2])
        return explain_with(*arguments, **options)

    monkeypatch.setattr(stream, "explain_with", counted)
    with pytest.raises(conserva.Error, match="'positve' is not one of the model's labels"):
        explained(task, [*first, *TEXTS], "positve")
    assert len(calls) <= 1 + stream.PROBES
    with pytest.raises(conserva.Error, match="exclude each other"):
        explained(task, [*first, *TEXTS], windows=True, truncate=True)


def test_a_method_that_does_not_apply_ends_the_stream(task: conserva.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    from conserva.errors import NotApplicable

    def refuses(*_: Any, **__: Any) -> Any:
        raise NotApplicable("no maps here")

    monkeypatch.setattr(stream, "explain_with", refuses)
    with pytest.raises(NotApplicable, match="no maps here"):
        explained(task, TEXTS)


def test_a_stream_of_errors_ends(task: conserva.Text) -> None:
    assert explained(task, []) == []
    assert [str(one) for one in explained(task, [conserva.Error("a"), conserva.Error("b")])] == ["a", "b"]
    assert ["is empty" in str(one) for one in explained(task, ["", " "])] == [True, True]


def test_long_texts_are_explained_in_windows(task: conserva.Text) -> None:
    long, short = "good " * 600, "a joy."
    one, other = explained(task, [long, short], windows=True)
    assert len(one.windows) == 2
    assert other.windows == ()
    assert one.output == pytest.approx(conserva.explain(task, long, windows=True).output, abs=1e-3)


def test_few_inputs_are_read_ahead(task: conserva.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    read_ahead(4, monkeypatch)
    read = []

    def inputs() -> Iterator[str]:
        for number in range(1000):
            read.append(number)
            yield f"a joy {number}"

    explanations = explain_stream(task, inputs(), lambda chunk: None, method="random")
    next(explanations)
    assert len(read) == 4
    explanations.close()
