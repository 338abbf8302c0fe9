"""Recorded computations: made of shapes that come often, trusted after they agree, given up where they cannot be."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import conserva
from conserva import kept, launches, recording
from conserva.recording import AFTER, Compute, Recorder, others_at_work, varied

GPU = torch.device("cpu")  # which stands for one
pytestmark = pytest.mark.usefixtures("alone")


class Idle:
    """Stands in for a device that waits for Python."""

    most_bytes = 1e9

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def behind(self) -> float:
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


def refuses(compute: Compute, inputs: Mapping[str, Tensor], pool: Any) -> Tape:
    raise RuntimeError("the model waits for its own numbers")


def record_by(tape: Any, patch: pytest.MonkeyPatch, kind: type[Recorder] = Recorder) -> None:
    """Let models on a CPU be recorded, by tapes."""
    patch.setattr(kept, "_device_of", lambda parts: GPU)
    patch.setattr(kept, "_may_be_recorded", lambda model: True)
    patch.setattr(kept, "Recorder", lambda device, rounding: kind(device, record=tape, room=Idle, rounding=rounding))


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


def test_a_recording_that_does_not_follow_its_inputs_is_never_used() -> None:
    assert not any(stream(Recorder(GPU, room=Idle, record=Stuck), 9))


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


def test_nothing_is_trusted_on_the_inputs_that_it_was_made_of() -> None:
    recorder = Recorder(GPU, room=Idle, record=Stuck)
    same, other = {"x": torch.ones(3)}, {"x": torch.full((3,), 2.0)}
    for _ in range(AFTER + 5):
        assert not recorder.run(None, same, double)[1]
    for _ in range(3):
        found, replayed = recorder.run(None, other, double)
        assert torch.equal(found[0], 2 * other["x"])
        assert not replayed


@pytest.mark.parametrize(("tape", "is_trusted"), [(Tape, True), (Stuck, False)])
@pytest.mark.parametrize("may_vary", [True, False])
def test_where_the_same_inputs_come_again_others_are_made_of_them(tape: Any, is_trusted: bool, may_vary: bool) -> None:
    recorder, computed = Recorder(GPU, room=Idle, record=tape), []

    def twice(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        computed.append(inputs["input_ids"].tolist())
        return [2 * inputs["input_ids"]]

    given = torch.tensor([[1, 2, 3]])
    for _ in range(AFTER + 5):
        found, replayed = recorder.run(
            None, {"input_ids": given.clone()}, twice, vary=varied if may_vary else None
        )  # fmt: skip
        assert torch.equal(found[0], 2 * given)
    assert replayed == (is_trusted and may_vary)
    assert ([[3, 1, 2]] in computed) == may_vary


def test_what_may_change_places_and_what_may_not() -> None:
    pairs, numbers = torch.tensor([[1, 2]]), torch.tensor([[1.0, 2.0]])
    given = {
        "decoder_input_ids": pairs, "bbox": pairs, "attention_mask": pairs, "pixel_values": numbers, "lengths": numbers,
        "input_ids": torch.tensor([[[1, 2]]]),  # a vocabulary for each column
    }  # fmt: skip
    moved = {name for name, x in varied(given).items() if not torch.equal(x, given[name])}
    assert moved == {"decoder_input_ids", "pixel_values"}
    assert torch.equal(varied({"input_ids": torch.tensor(3)})["input_ids"], torch.tensor(3))


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


def rounded(error: float) -> type[Tape]:
    """Return a tape whose replays are off."""

    class Rounded(Tape):
        def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
            first, *rest = super().replay(inputs)
            return [first * (1 + error), *rest]

    return Rounded


@pytest.mark.parametrize("error", [2**-23, 0.1])
def test_a_replay_must_give_the_very_same_bits(error: float) -> None:
    Rounded = rounded(error)  # noqa: N806 - a class
    recorder = Recorder(GPU, room=Idle, record=Rounded)
    assert not any(stream(recorder, 9, "rounded"))
    assert not recorder.holds_memory
    recorder._record = Tape
    assert any(stream(recorder, 9, "another"))  # it tells nothing about other computations
    assert not any(stream(recorder, 9, "rounded"))


@pytest.mark.parametrize(("error", "is_trusted"), [(2**-23, True), (1e-3, False)])
def test_whoever_is_not_cautious_lets_rounding_pass(error: float, is_trusted: bool) -> None:
    recorder = Recorder(GPU, room=Idle, record=rounded(error), rounding=1e-4)
    for i in range(9):
        *_, replayed = recorder.run(None, {"x": torch.full((3,), i + 1.0)}, double, cautious=False)
    assert replayed == is_trusted
    assert not any(stream(recorder, 9))  # the cautious have their own


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


def test_recordings_hold_only_so_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Idle, "most_bytes", 2 * Tape.bytes)
    recorder = Recorder(GPU, room=Idle, record=Tape)
    assert [any(stream(recorder, 9, what)) for what in range(4)] == [True, True, False, False]
    assert any(stream(recorder, 1, 0))


def test_a_replay_that_fails_is_given_up_and_what_was_found_stands() -> None:
    class Fails(Tape):
        def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    recorder = Recorder(GPU, room=Idle, record=Fails)
    assert not any(stream(recorder, 9))
    assert not recorder.holds_memory


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


TEXTS = [f"{word} film" for word in ("good", "bad", "fine", "dull", "long", "short", "old", "new", "great")]


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
    texts = [text for text in TEXTS if len(task.encode(text)) == len(task.encode(TEXTS[0]))]
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
    text = [text for text in TEXTS if len(task.encode(text)) == len(task.encode(TEXTS[0]))]
    for one in text:
        conserva.explain(task, one, 1, "exact")
    assert replays == [False] * (AFTER + 2) + [True] * (len(text) - AFTER - 2)


def test_a_method_with_other_options_is_another_recording(replays: list[bool]) -> None:
    task = conserva.load("sentiment")
    texts = [text for text in TEXTS if len(task.encode(text)) == len(task.encode(TEXTS[0]))]
    conserva.explain(task, texts, 1, "ah+ln", batch_tokens=1)
    assert replays[-1]
    found = conserva.explain(task, texts[0], 1, "ah+ln:gamma=0.5")
    assert not replays[-1]
    assert found == conserva.explain(task, texts[0], 1, "ah+ln:gamma=0.5", replay=False)


def test_recordings_make_room_where_memory_runs_out(replays: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    task = conserva.load("sentiment")
    texts = [text for text in TEXTS if len(task.encode(text)) == len(task.encode(TEXTS[0]))]
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
    texts = [text for text in TEXTS if len(task.encode(text)) == len(task.encode(TEXTS[0]))][: AFTER + 3]
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
