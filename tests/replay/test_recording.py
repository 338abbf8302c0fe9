"""Recorded computations: made of shapes that come often, used after they agree, given up where they cannot be."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from conserva.replay import cuda_graph
from conserva.replay import recorder as recording
from conserva.replay.recorder import AFTER, MOST_SHAPES, Compute, Recorder, recorder_of
from tapes import GPU, Pool, Stuck, Tape, record_by, rounded


def recorder_by(tape: Any = Tape, weights: Sequence[Tensor] = ()) -> Recorder:
    Pool.released = Tape.made = 0
    return Recorder(GPU, weights, record=tape, pool=Pool)


def double(inputs: Mapping[str, Tensor]) -> tuple[list[Tensor], str]:
    return [2 * inputs["x"], torch.ones(1, dtype=torch.bool)], "a note"


def stream(recorder: Recorder, count: int, what: object = None, compute: Any = double) -> list[bool]:
    """Run batches of one shape, each right; return which were replays."""
    replays = []
    for i in range(count):
        inputs = {"x": torch.full((3,), float(i + 1))}
        ran = recorder.run(recorder.key(what, inputs), inputs, compute)
        assert torch.equal(ran.numbers[0], 2 * inputs["x"])
        assert ran.note == "a note"
        replays.append(ran.is_replay)
    return replays


def test_a_shape_that_came_often_is_recorded_compared_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    plain = recording._is_same
    monkeypatch.setattr(recording, "_is_same", lambda *pair: compared.append(1) or plain(*pair))
    recorder = recorder_by()
    assert stream(recorder, AFTER + 4) == [False] * (AFTER + 1) + [True] * 3
    assert len(compared) == 2  # the numbers of one batch
    assert Tape.made == 1


def test_few_batches_of_a_shape_are_not_recorded() -> None:
    recorder = recorder_by()
    for what in range(5):
        stream(recorder, AFTER, what)
    assert Tape.made == 0
    assert recorder._pool is None


def test_other_shapes_dtypes_layouts_and_computations_are_recorded_by_themselves() -> None:
    recorder = recorder_by()
    stream(recorder, AFTER + 2)
    assert stream(recorder, 1, what="another") == [False]
    for x in (torch.ones(4), torch.ones(3, dtype=torch.float64), torch.ones(6)[::2]):
        assert not recorder.run(recorder.key(None, {"x": x}), {"x": x}, double).is_replay
    assert stream(recorder, 1) == [True]


def test_the_recording_is_made_of_one_batch_and_compared_on_another() -> None:
    made_of: list[list[float]] = []

    class ComputeWithNote(Tape):
        def __init__(self, compute: Compute, inputs: Mapping[str, Tensor], pool: Any) -> None:
            made_of.append(inputs["x"].tolist())
            super().__init__(compute, inputs, pool)

    recorder = recorder_by(ComputeWithNote)
    stream(recorder, AFTER + 2)
    assert made_of == [[float(AFTER)] * 3]  # the batch before the one that it is compared on


def test_a_recording_that_ignores_its_inputs_is_never_used() -> None:
    assert not any(stream(recorder_by(Stuck), 9))


@pytest.mark.parametrize("tape", [Tape, Stuck])
def test_nothing_is_recorded_while_the_same_inputs_come(tape: Any) -> None:
    recorder, x = recorder_by(tape), torch.ones(3)
    for _ in range(AFTER + 5):
        assert not recorder.run("key", {"x": x}, double).is_replay
    assert Tape.made == 0
    x.fill_(2.0)  # other numbers in the same tensor
    recorder.run("key", {"x": x}, double)
    assert Tape.made == 1
    assert recorder.run("key", {"x": x}, double).is_replay == (tape is Tape)


@pytest.mark.parametrize("error", [2**-23, 0.1])
def test_a_replay_must_give_the_very_same_bits(error: float) -> None:
    recorder = recorder_by(rounded(error))
    assert not any(stream(recorder, 9, "rounded"))
    assert not recorder.holds_memory
    assert Tape.made == 1  # it is not tried again
    recorder._record = Tape
    assert any(stream(recorder, 9, "another"))  # it tells nothing about other computations
    assert not any(stream(recorder, 9, "rounded"))


def test_a_replay_of_another_dtype_is_not_used() -> None:
    class Wider(Tape):
        def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
            return [x.double() for x in super().replay(inputs)]

    assert not any(stream(recorder_by(Wider), 9))


def refuses(compute: Compute, inputs: Mapping[str, Tensor], pool: Any) -> Tape:
    Tape.made += 1
    raise RuntimeError("the model reads its own numbers")


class Fails(Tape):
    """A tape that cannot be replayed."""

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("tape", [refuses, Fails])
def test_after_one_failure_nothing_is_recorded_any_more(tape: Any) -> None:
    recorder = recorder_by()
    assert any(stream(recorder, 9, "first"))
    recorder._record = tape
    for what in ("second", "third", "first"):
        assert not any(stream(recorder, 9, what))
    assert Tape.made == 2
    assert not recorder.holds_memory
    assert Pool.released == 1
    assert recorder._shapes == {}


def test_inputs_on_another_device_are_not_recorded() -> None:
    recorder = Recorder(torch.device("meta"), record=Tape, pool=Pool)
    assert not any(stream(recorder, 9))


def test_only_so_many_shapes_are_recorded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST", 1)
    recorder = recorder_by()
    assert any(stream(recorder, 9, "first"))
    assert not any(stream(recorder, 9, "second"))
    for what in range(MOST_SHAPES + 9):
        stream(recorder, 1, what)
    assert len(recorder._shapes) <= MOST_SHAPES


def test_recordings_hold_only_so_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "most_bytes", 2 * Tape.bytes)
    recorder = recorder_by()
    assert [any(stream(recorder, 9, what)) for what in range(6)] == [True, True, *[False] * 4]
    assert Tape.made == 3  # from then on none is made
    assert all(stream(recorder, 2, 0))
    assert Pool.released == 0


def test_a_pool_is_used_until_its_recordings_are_all_deleted() -> None:
    pools: list[Any] = []

    def noted(*given: Any) -> Tape:
        pools.append(given[-1])
        return (rounded(0.1) if len(pools) == 1 else Tape)(*given)

    recorder = recorder_by(noted)
    assert [any(stream(recorder, 9, what)) for what in range(3)] == [False, True, True]
    assert pools[0] is not pools[1]
    assert pools[1] is pools[2]
    assert recorder._bytes == 2 * Tape.bytes


def test_a_recording_that_alone_holds_too_much_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "most_bytes", 0.5 * Tape.bytes)
    recorder = recorder_by()
    assert not any(stream(recorder, 9))
    assert (Tape.made, Pool.released) == (1, 1)


def test_a_computation_that_writes_to_the_weights_is_not_recorded() -> None:
    weight = torch.zeros(3)

    def counts(inputs: Mapping[str, Tensor]) -> tuple[list[Tensor], str]:
        weight.add_(1)
        return double(inputs)

    assert not any(stream(recorder_by(weights=[weight]), 9, compute=counts))
    assert Tape.made == 0


def test_a_computation_that_draws_random_numbers_is_not_recorded() -> None:
    def draws(inputs: Mapping[str, Tensor]) -> tuple[list[Tensor], str]:
        torch.rand(1)
        return double(inputs)

    assert not any(stream(recorder_by(), 9, compute=draws))
    assert Tape.made == 0


def test_weights_may_change_between_batches() -> None:
    weight = torch.zeros(3)
    recorder = recorder_by(weights=[weight, torch.inference_mode()(torch.zeros)(3)])
    for i in range(AFTER + 2):
        weight.add_(1)
        x = torch.full((3,), float(i))
        is_replay = recorder.run("key", {"x": x}, double).is_replay
    assert is_replay


def test_a_recording_that_is_distrusted_is_not_made_again() -> None:
    recorder = recorder_by()
    assert any(stream(recorder, 9))
    recorder.discard(recorder.key(None, {"x": torch.zeros(3)}))
    assert not recorder.holds_memory
    assert not any(stream(recorder, 9))
    assert any(stream(recorder, 9, "another"))


def used(model: nn.Module) -> Iterator[Recorder]:
    with recorder_of(model) as recorder:
        assert recorder is not None
        assert any(stream(recorder, 9))
        yield recorder
        raise ValueError("later")


@pytest.mark.parametrize("end", ["close", "error", "deleted"])
def test_everything_is_dropped_when_a_block_ends(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    before = dict(vars(model))
    generator = used(model)
    recorder = next(generator)
    [trusted] = recorder._trusted.values()
    tape = weakref.ref(trusted.recording)
    del trusted
    if end == "close":
        generator.close()
    elif end == "error":
        with pytest.raises(ValueError, match="later"):
            next(generator)
    del generator
    gc.collect()
    assert tape() is None
    assert not recorder.holds_memory
    assert Pool.released == 1
    assert not any(stream(recorder, 9))
    assert vars(model) == before


def test_recorders_of_several_threads_record_one_at_a_time() -> None:
    met, inside = [], threading.Semaphore(1)

    class Slow(Tape):
        def __init__(self, *given: Any) -> None:
            is_alone = inside.acquire(blocking=False)
            met.append(is_alone)
            super().__init__(*given)
            threading.Event().wait(0.05)
            if is_alone:
                inside.release()

    threads = [threading.Thread(target=lambda: stream(recorder_by(Slow), AFTER + 1)) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert met == [True] * 4


def test_memory_is_released_while_no_other_thread_records(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[bool] = []
    monkeypatch.setattr(Pool, "release", lambda self: locked.append(recording._one_at_a_time.locked()))
    recorder = recorder_by()
    assert any(stream(recorder, 9))
    recorder.drop()
    assert locked == [True]
    assert not recording._one_at_a_time.locked()


def test_copies_of_inputs_have_no_autograd_history() -> None:
    x = torch.randn(3, requires_grad=True) * 2
    assert not cuda_graph.copied({"x": x})["x"].requires_grad


@functools.lru_cache(maxsize=1)
def table(size: int) -> Tensor:
    """Return what a library caches for the last size that it met."""
    return torch.arange(1.0, 1.0 + size)


def test_what_a_recording_reads_stays_alive() -> None:
    operands, weight, x = cuda_graph.Operands(), nn.Parameter(torch.ones(3)), torch.ones(3)
    cached = weakref.ref(table(3).untyped_storage())
    with operands:
        made = x + 1
        inside = weakref.ref(made.untyped_storage())
        numbers = (made * weight).view(3, 1) * table(3)
    table.cache_clear()
    assert cached() is not None
    kept = set(operands.kept)
    assert {x.data_ptr(), weight.data_ptr(), cached().data_ptr()} <= kept
    assert not {made.data_ptr(), numbers.data_ptr()} & kept
    del made, numbers
    gc.collect()
    assert inside() is None
    operands.kept.clear()
    assert cached() is None


def test_tensors_without_a_storage_are_kept_too() -> None:
    operands, x = cuda_graph.Operands(), torch.eye(3).to_sparse()
    with operands:
        torch.sparse.mm(x, torch.ones(3, 3))
    assert any(isinstance(one, Tensor) and one.is_sparse for one in operands.kept.values())


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
    pool: Any = SimpleNamespace(stream=SimpleNamespace(device=SimpleNamespace(index=0)), handle=(0, 1))
    with contextlib.ExitStack() as stack:
        if fails:
            stack.enter_context(pytest.raises(RuntimeError, match="not permitted"))
        assert cuda_graph.Graph(compute, {"x": torch.ones(2)}, pool).bytes == 0
    assert seen == ["copy", "own"][: 1 if fails == "at the beginning" else 2]
    assert random.state == "own"
    assert streams == ["before"]
    assert ended == ([(0, (0, 1))] if fails else [])
