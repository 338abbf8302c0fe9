"""Recorded computations: made of shapes that come often, trusted after they agree, given up where they cannot be."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from conserva import cuda_graph, kept, recording
from conserva.recording import AFTER, Compute, Recorder, others_at_work

GPU = torch.device("cpu")  # which stands for one
pytestmark = pytest.mark.usefixtures("alone")


class Idle:
    """Stands in for a device that waits for Python."""

    most_bytes = 1e9

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def behind(self) -> float:
        return 0.0

    def seconds(self, run: Any) -> float:
        return 0.0


class Tape:
    """Stands in for a CUDA graph: it runs the computation on copies of its own."""

    bytes = 1000

    def __init__(self, compute: Compute, inputs: Mapping[str, Tensor], pool: Any) -> None:
        self.compute, self.inputs = compute, {name: x.clone() for name, x in inputs.items()}
        compute(self.inputs)

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        for name, x in self.inputs.items():
            x.copy_(inputs[name])
        return self.compute(self.inputs)


class Stuck(Tape):
    """A recording that kept the numbers it was made of."""

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return self.compute(self.inputs)


def rounded(error: float) -> type[Tape]:
    """Return a tape whose replays are off."""

    class Rounded(Tape):
        def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
            first, *rest = super().replay(inputs)
            return [first * (1 + error), *rest]

    return Rounded


def refuses(compute: Compute, inputs: Mapping[str, Tensor], pool: Any) -> Tape:
    raise RuntimeError("the model waits for its own numbers")


def record_by(tape: Any, patch: pytest.MonkeyPatch, kind: type[Recorder] = Recorder) -> None:
    """Let models on a CPU be recorded, by tapes."""
    patch.setattr(kept, "_device_of", lambda parts: GPU)
    patch.setattr(kept, "_may_be_recorded", lambda model: True)
    patch.setattr(kept, "Recorder", lambda device, **how: kind(device, record=tape, room=Idle, **how))


def double(inputs: Mapping[str, Tensor]) -> list[Tensor]:
    return [2 * inputs["x"], torch.ones(1, dtype=torch.bool)]


def stream(recorder: Recorder, count: int, what: object = None) -> list[bool]:
    """Run batches of one shape, each right; return which were replays."""
    replays = []
    for i in range(count):
        x = torch.full((3,), float(i + 1))
        found, replayed = recorder.run(what, {"x": x}, double)
        assert torch.equal(found[0], 2 * x)
        replays.append(replayed)
    return replays


def test_a_shape_is_recorded_when_it_came_often_and_trusted_after_it_agreed() -> None:
    recorder = Recorder(GPU, room=Idle, record=Tape)
    plain = AFTER + 2  # before it is recorded, while it is, and while it is compared
    assert stream(recorder, plain + 3) == [False] * plain + [True] * 3


def test_other_shapes_types_and_computations_are_recorded_by_themselves() -> None:
    recorder = Recorder(GPU, room=Idle, record=Tape)
    stream(recorder, AFTER + 3)
    assert stream(recorder, 1, what="another") == [False]
    for x in (torch.ones(4), torch.ones(3, dtype=torch.float64)):
        assert not recorder.run(None, {"x": x}, double)[1]
    assert stream(recorder, 1) == [True]


def test_what_cannot_be_recorded_is_computed() -> None:
    calls: list[int] = []

    def counted(compute: Compute, inputs: Mapping[str, Tensor], pool: Any) -> Tape:
        calls.append(1)
        return refuses(compute, inputs, pool)

    assert not any(stream(Recorder(GPU, room=Idle, record=counted), 9))
    assert len(calls) == 1


def test_only_so_many_shapes_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST", 1)
    recorder = Recorder(GPU, room=Idle, record=Tape)
    assert any(stream(recorder, 9, "first"))
    assert not any(stream(recorder, 9, "second"))


def test_what_lies_elsewhere_is_not_recorded() -> None:
    recorder = Recorder(torch.device("meta"), room=Idle, record=Tape)
    assert not any(stream(recorder, 9))


def test_after_one_failure_nothing_is_recorded_any_more() -> None:
    recorder = Recorder(GPU, room=Idle, record=Tape)
    assert any(stream(recorder, 9, "first"))
    recorder._record = refuses
    assert not any(stream(recorder, 9, "second"))
    assert not any(stream(recorder, 9, "first"))
    assert not recorder.holds_memory


def test_where_the_device_is_behind_there_is_nothing_to_gain() -> None:
    class Busy(Idle):
        def behind(self) -> float:
            return 1e6

    made: list[int] = []

    def counted(compute: Compute, inputs: Mapping[str, Tensor], room: Any) -> Tape:
        made.append(1)
        return Tape(compute, inputs, room)

    recorder = Recorder(GPU, room=Busy, record=counted)
    assert not any(stream(recorder, 9))
    assert made == []


def test_many_threads_at_once() -> None:
    recorder, wrong, start = Recorder(GPU, room=Idle, record=Locked), [], threading.Barrier(6)

    def work(own: int) -> None:
        start.wait()
        for i in range(60):
            x = torch.full((3,), float(own * 100 + i))
            found, _ = recorder.run(i % 3, {"x": x}, double, cautious=False)
            if not torch.equal(found[0], 2 * x):
                wrong.append((own, i))
            if (own, i) == (0, 50):
                recorder.drop()

    threads = [threading.Thread(target=work, args=(own,)) for own in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


@contextlib.contextmanager
def another_thread(target: Any = None) -> Iterator[threading.Thread]:
    """Let another thread be alive."""
    over = threading.Event()
    other = threading.Thread(target=target or over.wait, args=(over,) if target else ())
    other.start()
    try:
        yield other
    finally:
        over.set()
        other.join()


def test_nothing_is_recorded_while_others_are_at_work_unless_it_may_be() -> None:
    recorder = Recorder(GPU, room=Idle, record=Tape)
    with another_thread():
        assert others_at_work()
        assert not any(stream(recorder, 9))
        for i in range(9):
            *_, replayed = recorder.run("any time", {"x": torch.full((3,), float(i))}, double, cautious=False)
        assert replayed
    assert not others_at_work()
    assert any(stream(recorder, 9))
    with another_thread():
        assert all(stream(recorder, 3))  # what is recorded is replayed


def test_threads_of_notebooks_and_progress_bars_are_not_at_work() -> None:
    def beat(over: threading.Event) -> None:
        over.wait()

    beat.__module__ = "ipykernel.heartbeat"
    with another_thread(beat):
        assert not others_at_work()


class Locked(Tape):
    """A tape that lets threads take turns, as a room of CUDA graphs does."""

    turns = threading.Lock()

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        with self.turns:
            return super().replay(inputs)


def test_what_was_given_up_is_not_even_counted() -> None:
    recorder = Recorder(GPU, room=Idle, record=refuses)
    stream(recorder, 9)
    assert (recorder._shapes, recorder.notes) == ({}, {})


def test_dropped_recordings_leave_no_notes() -> None:
    recorder = Recorder(GPU, room=Idle, record=Tape)
    recorder.notes["form"] = 1
    recorder.drop()
    assert recorder.notes == {}


@pytest.mark.parametrize(("behind", "is_made"), [(0.0, True), (0.4, False)])  # seconds, where Python took far less
def test_the_device_is_asked_once_how_far_behind_it_is(behind: float, is_made: bool) -> None:
    asked: list[int] = []

    class Late(Idle):
        def behind(self) -> float:
            asked.append(1)
            return behind

    assert any(stream(Recorder(GPU, room=Late, record=Tape), 9)) == is_made
    assert len(asked) == 1 + is_made  # and once more for the time that the plain computation takes


def test_it_records_only_while_it_records() -> None:
    recorder, during = Recorder(GPU, room=Idle, record=Tape), []

    def noted(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        during.append(recorder.is_recording)
        return [inputs["x"]]

    for i in range(AFTER + 2):
        recorder.run(None, {"x": torch.full((3,), float(i))}, noted)
    assert during.count(True) == 1
    assert not recorder.is_recording


def test_two_recorders_take_turns() -> None:
    met, inside = [], threading.Semaphore(1)

    class Slow(Tape):
        def __init__(self, *given: Any) -> None:
            alone = inside.acquire(blocking=False)
            met.append(alone)
            super().__init__(*given)
            threading.Event().wait(0.05)
            if alone:
                inside.release()

    def work() -> None:
        recorder = Recorder(GPU, room=Idle, record=Slow)
        for i in range(AFTER + 1):
            recorder.run(None, {"x": torch.full((3,), float(i))}, double, cautious=False)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert met == [True] * 4


def test_recordings_that_wait_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST", 1)
    recorder = Recorder(GPU, room=Idle, record=Tape)
    for what in ("first", "second"):
        stream(recorder, AFTER + 1, what)
    assert len(recorder._waiting) == 1


def test_threads_that_python_did_not_start_are_not_at_work() -> None:
    assert recording._is_idle(threading._DummyThread())  # type: ignore[no-untyped-call]


class Random:
    """Stands in for a device's random numbers, whose state can be exchanged."""

    def __init__(self) -> None:
        self.state = "own"

    def graphsafe_get_state(self) -> str:
        return self.state

    def clone_state(self) -> str:
        return "copy"

    def graphsafe_set_state(self, state: str) -> None:
        self.state = state


@pytest.mark.parametrize("fails", ["", "at the beginning", "on the way"])
def test_a_graph_that_cannot_be_made_leaves_the_device_as_it_was(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random, seen, ended, streams = Random(), [], [], []

    @contextlib.contextmanager
    def graph(*_: Any, **how: Any) -> Iterator[None]:
        seen.append(random.state)
        if fails == "at the beginning":
            raise RuntimeError("operation not permitted")
        yield

    def compute(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        seen.append(random.state)
        if fails:
            raise RuntimeError("operation not permitted")
        return [2 * inputs["x"]]

    fakes: dict[str, Any] = {
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None), "graph": graph, "default_generators": [random],
        "device": lambda device: contextlib.nullcontext(), "current_stream": lambda *_: "before",
        "set_stream": streams.append, "memory_reserved": lambda: 7,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *given: ended.append(given), raising=False)
    room: Any = SimpleNamespace(stream=SimpleNamespace(device=SimpleNamespace(index=0)), pool=(0, 1))
    with contextlib.ExitStack() as stack:
        if fails:
            stack.enter_context(pytest.raises(RuntimeError, match="not permitted"))
        assert cuda_graph.Graph(compute, {"x": torch.ones(2)}, room).bytes == 0
    assert seen == ["copy", "own"][: 1 if fails == "at the beginning" else 2]
    assert random.state == "own"
    assert streams == ["before"]
    assert ended == ([(0, (0, 1))] if fails else [])
