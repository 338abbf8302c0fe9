"""Batches of inputs on their way through a method, replayed where they can be: the same explanations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import conserva
from conserva.bias_study import collect
from conserva.explaining import launches
from conserva.replay.recorder import AFTER
from tapes import Recorders, Stuck, Tape, record_by

TEXTS = [f"{word} film" for word in ("good", "bad", "fine", "dull", "long", "short", "old", "new", "great")]


def alike(task: Any) -> list[str]:
    """Return texts of one length."""
    return [text for text in TEXTS if len(task.encode(text)) == len(task.encode(TEXTS[0]))]


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> Recorders:
    """Record on the CPU too."""
    return record_by(Tape, monkeypatch)


def explain_plain(task: Any, texts: Any, *given: Any, **how: Any) -> Any:
    """Explain one at a time: a call of one batch records nothing."""
    return [conserva.explain(task, text, *given, **how) for text in texts]


@pytest.mark.parametrize("method", ["ah+ln", "exact", "gi"])
@pytest.mark.parametrize("target", [None, 1, "positive", "positive - negative"])
def test_explanations_are_the_same_replayed(method: str, target: Any, taped: Recorders) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)
    many = conserva.explain(task, texts, target, method=method, batch_tokens=1)
    assert taped.ran == [False] * (AFTER + 1) + [True] * (len(texts) - AFTER - 1)
    taped.ran.clear()
    assert many == explain_plain(task, texts, target, method=method)
    assert not any(taped.ran)


def test_a_call_of_few_batches_records_nothing(taped: Recorders) -> None:
    task = conserva.load("sentiment")
    conserva.explain(task, alike(task)[:AFTER], method="gi", batch_tokens=1)
    assert Tape.made == 0


def test_recordings_end_with_the_call(taped: Recorders) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)
    before = set(vars(task.model))
    for _ in range(2):
        taped.ran.clear()
        conserva.explain(task, texts, 1, method="exact", batch_tokens=1)
        assert taped.ran == [False] * (AFTER + 1) + [True] * (len(texts) - AFTER - 1)
        assert not taped.last.holds_memory
        assert taped.last._pool is None
    assert len(taped.made) == 2
    assert set(vars(task.model)) == before


def test_recordings_end_with_a_call_that_fails(taped: Recorders) -> None:
    task = conserva.load("sentiment")

    def stop(count: int) -> None:
        if taped.ran[-1]:
            assert taped.last.holds_memory
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        conserva.explain(task, alike(task), 1, method="exact", batch_tokens=1, progress=stop)
    assert not taped.last.holds_memory


def test_a_study_has_one_recorder_for_all_its_texts(taped: Recorders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "AT_ONCE", 2)
    task = conserva.load("sentiment")
    texts, how = alike(task), {"target": "positive - negative", "swaps": 0, "batch_tokens": 1}
    groups = {"a": ["film"]}
    found = conserva.bias(task, texts, groups, **how)
    assert len(taped.made) == 1
    assert taped.ran == [False] * (AFTER + 1) + [True] * (len(texts) - AFTER - 1)
    assert not taped.last.holds_memory
    monkeypatch.undo()
    assert found.mentions == conserva.bias(task, texts, groups, **how).mentions


def test_a_recording_that_disagrees_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    recorders, task = record_by(Stuck, monkeypatch), conserva.load("sentiment")
    assert conserva.explain(task, alike(task), 1, method="exact", batch_tokens=1) == explain_plain(
        task, alike(task), 1, method="exact"
    )
    assert Tape.made == 1
    assert not any(recorders.ran)


def test_targets_that_differ_are_not_recorded(taped: Recorders) -> None:
    task = conserva.load("sentiment")
    conserva.explain(task, TEXTS[:4], [0, 1, 0, 1], method="gi", batch_tokens=100)
    assert taped.ran == []


def test_other_methods_are_not_recorded(taped: Recorders) -> None:
    conserva.explain(conserva.load("sentiment"), TEXTS, 1, method="random", batch_tokens=1)
    assert taped.ran == []


def test_without_a_gpu_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches.Recorder, "run", lambda *_: pytest.fail("recorded"))
    task = conserva.load("sentiment")
    conserva.explain(task, alike(task), 1, method="exact", batch_tokens=1)


def test_a_model_with_hooks_is_not_recorded(taped: Recorders) -> None:
    task, seen = conserva.load("sentiment"), []
    task.model.register_forward_hook(lambda *_: seen.append(1))
    conserva.explain(task, alike(task), 1, method="exact", batch_tokens=1)
    assert taped.ran == []
    assert len(seen) == len(alike(task))


def test_targets_that_differ_between_batches_have_recordings_of_their_own(taped: Recorders) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)
    targets = [i % 2 for i in range(len(texts))]
    found = conserva.explain(task, texts, targets, method="exact", batch_tokens=1)
    assert any(taped.ran)
    for text, target, one in zip(texts, targets, found, strict=True):
        assert one == conserva.explain(task, text, target, method="exact")


def test_recordings_make_room_where_memory_runs_out(taped: Recorders, monkeypatch: pytest.MonkeyPatch) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)
    plain, failures = task.batch, []

    def batch(encoded: Any) -> Any:
        if len(taped.ran) == AFTER + 2 and not failures:
            failures.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(encoded)

    monkeypatch.setattr(task, "batch", batch)
    found = conserva.explain(task, texts, method="gi", batch_tokens=1)
    assert failures
    assert taped.ran[AFTER + 1 :] == [True, *[False] * (len(texts) - AFTER - 2)]
    assert [one.text for one in found] == texts


def test_a_replay_that_fails_its_checks_says_what_the_plain_run_says(
    taped: Recorders, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = conserva.load("sentiment")
    texts = alike(task)[: AFTER + 2]
    launch, count = launches._launch, []

    def broken(*args: Any) -> Any:
        count.append(1)
        if len(count) == len(texts):  # weights go wrong just before the replay
            with torch.no_grad():
                next(task.model.parameters()).fill_(float("nan"))
        return launch(*args)

    monkeypatch.setattr(launches, "_launch", broken)
    with pytest.raises(conserva.Error, match=r"nan or inf, first in module"):
        conserva.explain(task, texts, method="ah+ln", batch_tokens=1)
    assert taped.ran[-1]


def test_a_replay_that_alone_fails_its_checks_is_not_tried_again(
    taped: Recorders, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, replay = conserva.load("sentiment"), Tape.replay
    texts = alike(task)

    def wrong(*given: Any) -> Any:
        found = replay(*given)
        return found if Tape.replays == 1 else [*found[:-1], torch.tensor(False)]  # after it was compared

    monkeypatch.setattr(Tape, "replay", wrong)
    found = conserva.explain(task, texts, 1, method="exact", batch_tokens=1)
    # The second replay is launched before the first is read.
    assert taped.ran == [False] * (AFTER + 1) + [True] * 2 + [False] * (len(texts) - AFTER - 3)
    assert found == explain_plain(task, texts, 1, method="exact")


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
