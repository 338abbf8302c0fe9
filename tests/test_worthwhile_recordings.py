"""Recordings hold memory: few do, and only those that are faster."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import conserva
import tiny
from conserva import kept, recording
from conserva.cuda_graph import Room
from conserva.recording import MOST_SHAPES, Recorder
from conserva.state import State
from conserva.weighing import Weighing, weigh
from test_recording import GPU, Idle, Tape, record_by, rounded, stream
from test_replays import OFTEN, Counting

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize(("seconds", "is_made"), [([0.85], True), ([0.95] * 3, False), ([9.0, 9.0, 0.85], True)])
def test_a_recording_that_is_no_faster_is_dropped(
    seconds: list[float], is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python is done at once, and the device a second later."""
    monkeypatch.setattr(recording, "BEHIND", math.inf)
    left = list(seconds)

    class Timed(Idle):
        def behind(self) -> float:
            return 1.0

        def seconds(self, run: Any) -> float:
            assert len(run()) == 2
            return left.pop(0)

    recorder = Recorder(GPU, room=Timed, record=Tape)
    assert any(stream(recorder, 9)) == is_made
    assert recorder.holds_memory == is_made
    assert left == []
    assert not recorder.gave_up


def test_recordings_hold_only_so_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Idle, "most_bytes", 2 * Tape.bytes)
    made: list[int] = []

    def counted(*given: Any) -> Tape:
        made.append(1)
        return Tape(*given)

    recorder = Recorder(GPU, room=Idle, record=counted)
    assert [any(stream(recorder, 9, what)) for what in range(9)] == [True, True, *[False] * 7]
    assert any(stream(recorder, 1, 0))
    assert len(made) == 3  # torch keeps the memory of the third for the others


def test_one_recording_that_holds_too_much_does_not_count_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Idle, "most_bytes", 1.5 * Tape.bytes)
    monkeypatch.setattr(Tape, "bytes", 2 * Tape.bytes)
    recorder = Recorder(GPU, room=Idle, record=Tape)
    assert not any(stream(recorder, 9, "large"))
    assert not recorder.gave_up
    monkeypatch.setattr(Tape, "bytes", Tape.bytes / 2)
    assert any(stream(recorder, 9, "small"))


def test_a_recording_that_is_not_trusted_any_more_leaves_no_notes() -> None:
    recorder = Recorder(GPU, room=Idle, record=Tape)
    assert any(stream(recorder, 9))
    key = recorder.key(None, {"x": torch.zeros(3)}, True)
    recorder.notes[key] = "something"
    recorder.distrust(key)
    assert not recorder.notes
    assert not recorder.holds_memory
    assert not any(stream(recorder, 9))


def looked_at(model: Any, length: int, patch: pytest.MonkeyPatch) -> bool:
    """Return whether an explanation looks at what a model is at the moment."""
    looked: list[int] = []
    with patch.context() as inner:
        inner.setattr(kept, "State", lambda model: looked.append(1) or State(model))
        conserva.relevance(model, tiny.tokens(length=length), 1)
    return bool(looked)


SLOW = {
    "the device is behind": ("behind", lambda self: 1e6),
    "too much memory": ("most_bytes", -1),
    "no faster": ("seconds", lambda self, run: 1e6),
}


@pytest.mark.parametrize("why", SLOW)
def test_a_model_is_not_looked_at_where_no_recording_pays(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    monkeypatch.setattr(Idle, *SLOW[why])
    model = tiny.bert()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(length=6, seed=seed), 1)
    assert not looked_at(model, 6, monkeypatch)
    assert looked_at(model, 7, monkeypatch)
    model.double()
    assert looked_at(model, 6, monkeypatch)


def test_it_is_looked_at_where_other_settings_may_help(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(rounded(1e-3), monkeypatch)
    model = tiny.bert()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(length=6, seed=seed), 1)
    assert not kept._of_models[model].recorder.holds_memory
    assert looked_at(model, 6, monkeypatch)


def test_what_is_in_vain_is_forgotten_with_the_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_SHAPES", 1)
    recorder = Recorder(GPU, room=Idle, record=Tape)
    stream(recorder, 1, "first")
    recorder.vain.add("something")
    stream(recorder, 1, "first")
    assert recorder.vain
    stream(recorder, 1, "second")
    assert not recorder.vain


def test_a_room_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    room, order = object.__new__(Room), []
    monkeypatch.setattr(Room, "behind", lambda self: order.append("device"))
    assert room.seconds(lambda: order.append("run")) >= 0
    assert order == ["run", "device"]


@pytest.mark.parametrize("needed", [10**6, 10**10])
def test_what_needs_much_memory_is_not_recorded(needed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Counting.replays, asked = 0, []

    def allocated(device: torch.device) -> int:
        asked.append(1)
        return 10**12 + needed * (len(asked) > 1)

    monkeypatch.setattr(torch.cuda, "memory_allocated", allocated)
    record_by(Counting, monkeypatch)
    model = tiny.bert()
    conserva.relevance(model, tiny.tokens(), 1)
    assert not asked  # the first pass makes things that stay
    for seed in range(OFTEN + 3):
        conserva.relevance(model, tiny.tokens(seed=seed), 1)
    assert bool(Counting.replays) == (needed < Idle.most_bytes)
    assert len(asked) == 2  # before the second pass, and in the middle of it


def test_an_allocator_that_does_not_tell_is_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> int:
        raise RuntimeError("does not yet support getDeviceStats")

    Counting.replays = 0
    record_by(Counting, monkeypatch)
    monkeypatch.setattr(torch.cuda, "memory_allocated", refuse)
    model = tiny.bert()
    for seed in range(OFTEN + 3):
        conserva.relevance(model, tiny.tokens(seed=seed), 1)
    assert Counting.replays


def test_memory_is_what_lay_there_at_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    lying = iter([100, 150, 400, 200])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(lying))
    with Weighing(torch.device("cpu")) as weighing:
        for _ in range(3):
            weigh()
    weigh()  # nobody asks any more
    assert weighing.bytes == 300


def test_the_faster_of_two_plain_passes_counts() -> None:
    """At once when it is recorded; nine seconds until the device is done when it is compared."""
    behind = iter([0.0, 9.0])

    class Uneven(Idle):
        def behind(self) -> float:
            return next(behind)

        def seconds(self, run: Any) -> float:
            return 1.0

    recorder = Recorder(GPU, room=Uneven, record=Tape)
    assert not any(stream(recorder, 9))


def test_shapes_that_fail_are_not_counted_for_ever() -> None:
    def fails(inputs: Any) -> Any:
        raise ValueError("no")

    recorder = Recorder(GPU, room=Idle, record=Tape)
    for i in range(MOST_SHAPES + 9):
        with pytest.raises(ValueError, match="no"):
            recorder.run(i, {"x": torch.zeros(1)}, fails)
    assert len(recorder._shapes) <= MOST_SHAPES
