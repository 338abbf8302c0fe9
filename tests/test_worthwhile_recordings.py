"""Recordings hold memory: few do, and only those that are faster."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conserva.cuda_graph import Room
from conserva.recording import Recorder
from test_recording import GPU, Idle, Tape, stream

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize(("seconds", "is_made"), [([0.85], True), ([0.95] * 3, False), ([9.0, 9.0, 0.85], True)])
def test_a_recording_that_is_no_faster_is_dropped(seconds: list[float], is_made: bool) -> None:
    """Python is done at once, and the device a second later."""
    left = list(seconds)

    class Timed(Idle):
        def behind(self) -> float:
            return 1.0 if recorder.holds_memory else 0.0

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


def test_a_room_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    room, order = object.__new__(Room), []
    monkeypatch.setattr(Room, "behind", lambda self: order.append("device"))
    assert room.seconds(lambda: order.append("run")) >= 0
    assert order == ["run", "device"]
