"""Batches of inputs on their way through a method, replayed where they can be: the same explanations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import conserva
from conserva import kept, launches
from conserva.recording import AFTER, Recorder
from test_recording import Tape, another_thread, record_by

pytestmark = pytest.mark.usefixtures("alone")

TEXTS = [f"{word} film" for word in ("good", "bad", "fine", "dull", "long", "short", "old", "new", "great")]


def alike(task: Any) -> list[str]:
    """Return texts of one length."""
    return [text for text in TEXTS if len(task.encode(text)) == len(task.encode(TEXTS[0]))]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record on the CPU too; returns which batches were replays."""
    ran: list[bool] = []

    class Spy(Recorder):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            found = super().run(*args, **kwargs)
            ran.append(found[1])
            return found

    record_by(Tape, monkeypatch, Spy)
    return ran


@pytest.mark.parametrize("method", ["ah+ln", "exact", "gi"])
@pytest.mark.parametrize("target", [None, 1, "positive", "positive - negative"])
def test_explanations_are_the_same_replayed(method: str, target: Any, replays: list[bool]) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)
    assert len(texts) > AFTER + 2
    many = conserva.explain(task, texts, target, method, batch_tokens=1)
    assert any(replays)
    replays.clear()
    for one, text in zip(many, texts, strict=True):
        assert one == conserva.explain(task, text, target, method, replay=False)
    assert not any(replays)


def test_targets_that_differ_are_not_recorded_and_nothing_is_where_it_may_not(replays: list[bool]) -> None:
    task = conserva.load("sentiment")
    conserva.explain(task, TEXTS[:4], [0, 1, 0, 1], "gi", batch_tokens=100)
    conserva.explain(task, TEXTS, method="gi", batch_tokens=1, replay=False)
    assert replays == []


def test_recorded_are_models_on_one_gpu_that_never_wait() -> None:
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    assert kept._device_of({(second, torch.float32), (second, torch.bfloat16)}) == second
    half, single = torch.float16, torch.float32
    for parts in (
        {(second, single), (first, single)},
        {(first, single), (first, half)},
        {(torch.device("cpu"), single)},
        set(),
    ):
        assert kept._device_of(parts) is None


def test_other_methods_are_not_recorded(replays: list[bool]) -> None:
    conserva.explain(conserva.load("sentiment"), TEXTS, 1, "random", batch_tokens=1)
    assert replays == []


def test_recordings_stay_for_the_next_call(replays: list[bool]) -> None:
    task = conserva.load("sentiment")
    text = alike(task)
    for one in text:
        conserva.explain(task, one, 1, "exact")
    assert replays == [False] * (AFTER + 2) + [True] * (len(text) - AFTER - 2)


@pytest.mark.parametrize(("target", "method"), [(1, "ah+ln:gamma=0.5"), (0, "ah+ln")])
def test_another_target_or_option_is_another_recording(target: int, method: str, replays: list[bool]) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)
    conserva.explain(task, texts, 1, "ah+ln", batch_tokens=1)
    assert replays[-1]
    found = conserva.explain(task, texts[0], target, method)
    assert not replays[-1]
    assert found == conserva.explain(task, texts[0], target, method, replay=False)


def test_recordings_make_room_where_memory_runs_out(replays: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)
    plain, failures = task.batch, []

    def batch(encoded: Any) -> Any:
        if len(replays) == AFTER + 3 and not failures:
            failures.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(encoded)

    monkeypatch.setattr(task, "batch", batch)
    found = conserva.explain(task, texts, method="gi", batch_tokens=1)
    assert failures
    assert replays[AFTER + 2 :] == [True, *[False] * (len(texts) - AFTER - 3)]
    assert [one.text for one in found] == texts


def test_a_replay_that_fails_its_checks_says_what_the_plain_run_says(
    replays: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)[: AFTER + 3]
    launch, count = launches._launch, []

    def broken(*args: Any) -> Any:
        count.append(1)
        if len(count) == len(texts):  # weights go wrong just before the replay
            with torch.no_grad():
                next(task.model.parameters()).fill_(float("nan"))
        return launch(*args)

    monkeypatch.setattr(launches, "_launch", broken)
    with pytest.raises(conserva.Error, match=r"nan or inf\. It arises first in module"):
        conserva.explain(task, texts, method="ah+ln", batch_tokens=1)
    assert replays[-1]


def test_a_replay_that_alone_fails_its_checks_is_not_tried_again(
    replays: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)
    for text in texts[: AFTER + 3]:
        conserva.explain(task, text, 1, "exact")
    assert replays[-1]
    replay = Tape.replay
    monkeypatch.setattr(Tape, "replay", lambda *given: [*replay(*given)[:-1], torch.tensor(False)])
    for text in texts[:2]:
        assert conserva.explain(task, text, 1, "exact") == conserva.explain(task, text, 1, "exact", replay=False)
    assert replays[-2:] == [True, False]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(3, 2), (3, 2)], (True, True)),
        ([(3, 2), (2, 2)], (False, True)),
        ([(3, 1), (3, 2)], (True, False)),
        ([(2, 2), (3, 1)], (False, False)),
    ],
)
def test_every_input_of_every_sample_may_be_padded(parts: list[tuple[int, int]], expected: tuple[bool, bool]) -> None:
    task: Any = SimpleNamespace(features=("source", "answer"))
    encoded: Any = [SimpleNamespace(parts=one) for one in parts]
    inputs = {"answer": torch.zeros(2, 2), "source": torch.zeros(2, 3)}
    assert launches._without_pads(task, encoded, inputs) == expected


def test_a_model_that_was_changed_is_not_replayed(replays: list[bool]) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)
    conserva.explain(task, texts, 1, "exact", batch_tokens=1)
    assert replays[-1]
    task.model.changed = True
    conserva.explain(task, texts[0], 1, "exact")
    assert not replays[-1]


def test_another_kind_of_task_is_another_recording(replays: list[bool]) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)
    conserva.explain(task, texts, 1, "exact", batch_tokens=1)
    assert replays[-1]
    task.__class__ = type("Another", (type(task),), {})
    conserva.explain(task, texts[0], 1, "exact")
    assert not replays[-1]


@pytest.mark.parametrize("replay", [None, True])
def test_whoever_asks_for_replays_does_not_wait_for_threads(replay: bool | None, replays: list[bool]) -> None:
    task = conserva.load("sentiment")
    with another_thread():
        conserva.explain(task, alike(task), 1, "exact", batch_tokens=1, replay=replay)
    assert any(replays) == bool(replay)
