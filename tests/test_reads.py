"""Which memory of others a computation reads; a recording goes when any of that does."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nested import nested_tensor
from torch.utils._python_dispatch import return_and_correct_aliasing

import conserva
import tiny
from conserva import kept
from conserva.reads import Reads
from conserva.recording import AFTER, Recorder
from test_recording import GPU, Idle, Tape, record_by
from test_replays import OFTEN

pytestmark = pytest.mark.usefixtures("alone")


def read(compute: Callable[[Tensor], Any]) -> Reads:
    """Return what a computation reads, of ones."""
    reads = Reads(GPU)
    reads.followed(lambda inputs: [compute(inputs["x"])])({"x": torch.ones(3)})
    return reads


def count(reads: Reads) -> int:
    return len(reads._others)


TABLE, ELSEWHERE = torch.ones(3), torch.ones(3, device="meta")
MADE_INSIDE: dict[str, Callable[[Tensor], Any]] = {
    "its inputs": lambda x: x * x[:1],
    "numbers": lambda x: x + torch.arange(3) * torch.zeros(3),
    "Python's numbers": lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
    "in place": lambda x: x.clone().add_(1).mul_(2),
    "a gradient": lambda x: torch.func.grad(lambda y: (y**3).sum())(x),
    "several": lambda x: torch.cat(torch.stack([x, x]).unbind()),
    "another device": lambda x: x.to("meta") * ELSEWHERE,
}


@pytest.mark.parametrize("name", MADE_INSIDE)
def test_what_a_computation_makes_is_its_own(name: str) -> None:
    assert count(read(MADE_INSIDE[name])) == 0


READ: dict[str, Callable[[Tensor], Any]] = {
    "a table": lambda x: x * TABLE,
    "a part of it": lambda x: x[:1] * TABLE[1:2],
    "again": lambda x: x * TABLE + TABLE.view(3, 1).sum() + TABLE.detach(),
    "by name": lambda x: torch.add(x, x, out=TABLE),
    "in a list": lambda x: torch.cat([x, TABLE]),
    "written to": lambda x: TABLE.copy_(x),
}


@pytest.mark.parametrize("name", READ)
def test_what_was_there_before_is_read(name: str) -> None:
    assert count(read(READ[name])) == 1


@pytest.mark.parametrize("name", [*MADE_INSIDE, *READ])
def test_what_is_read_alone_is_watched(name: str) -> None:
    compute = {**MADE_INSIDE, **READ}[name]
    assert read(compute).watch(lambda: None) == (name not in ("by name", "written to"))


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "itself": lambda t, x: t.add_(x),
    "and something else then": lambda t, x: t.add_(x) * x,
    "by name": lambda t, x: torch.add(x, 1, out=t),
    "in a list": lambda t, x: torch._foreach_add_([x.clone(), t], 1),
    "a part": lambda t, x: t[:2].add_(1),
    "a number": lambda t, x: t.__setitem__(0, 7.0),
    "another shape": lambda t, x: t.view(3, 1).mul_(2),
    "without its gradient": lambda t, x: t.detach().add_(1),
    "its numbers": lambda t, x: t.data.add_(1),
    "one of its parts": lambda t, x: t.unbind()[1].zero_(),
    "after it was read in another shape": lambda t, x: (t.view(3) * x, t.add_(1)),
    "an embedding's length": lambda t, x: F.embedding(torch.tensor([0]), t[None], max_norm=0.1),
    "statistics": lambda t, x: F.batch_norm(
        x.expand(4, 3) * torch.arange(4.0)[:, None], t, torch.ones(3), training=True
    ),
}


@pytest.mark.parametrize("how", WRITES)
def test_what_is_written_to_is_not(how: str) -> None:
    table = torch.ones(3)
    reads = read(lambda x: (WRITES[how](table, x), x)[1])
    assert not torch.equal(table, torch.ones(3))
    assert not reads.watch(lambda: None)


UNCHANGED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "its shape": lambda t, x: x * t.view(3).unsqueeze_(0),
    "its axes": lambda t, x: x * t.view(1, 3).t_().sum(),
    "a copy": lambda t, x: t.clone().add_(x),
    "statistics that are there": lambda t, x: F.batch_norm(x.expand(4, 3), t, torch.ones(3), training=False),
    "memory of its own": lambda t, x: torch.add(t, 1, out=torch.empty(3)).view(3, 1)[:, 0].copy_(x),
    "gradients": lambda t, x: torch.func.grad(lambda y: (y * t + (y[:1] * t).cumsum(0)).sum())(x),
}


@pytest.mark.parametrize("how", UNCHANGED)
def test_what_stays_as_it_is_is(how: str) -> None:
    table = torch.ones(3)
    reads = read(lambda x: (UNCHANGED[how](table, x), x)[1])
    assert torch.equal(table, torch.ones(3))
    assert reads.watch(lambda: None)


@pytest.mark.parametrize(
    "draw",
    [torch.rand_like, torch.bernoulli, lambda x: F.dropout(x, 0.5), lambda x: torch.randperm(3), lambda x: x.normal_()],
)
def test_random_numbers_are_not_drawn_in_vain(draw: Callable[[Tensor], Tensor]) -> None:
    assert not read(lambda x: x + 0 * draw(x)).watch(lambda: None)


def test_those_of_another_device_are_no_matter() -> None:
    assert read(lambda x: torch.rand(3, device="meta")).watch(lambda: None)


def test_attention_draws_none() -> None:
    assert read(lambda x: F.scaled_dot_product_attention(*[x.expand(1, 1, 4, 3)] * 3)).watch(lambda: None)


def test_a_pass_reads_all_weights_and_no_more() -> None:
    model, given = tiny.bert(), tiny.tokens()
    reads = Reads(GPU)
    reads.followed(lambda inputs: [conserva.relevance(model, inputs, 1, rules="exact").scores()])(given)
    known = {x.untyped_storage()._cdata for x in (*model.parameters(), *model.buffers())}
    assert set(reads._others) <= known
    assert {x.untyped_storage()._cdata for x in model.parameters()} <= set(reads._others)


class Wraps(Tensor):
    """A tensor that holds another."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wraps:
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made  # type: ignore[no-any-return]

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Wraps:
        return Wraps(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*(x.inner if isinstance(x, Wraps) else x for x in args), **(kwargs or {}))
        return return_and_correct_aliasing(function, args, kwargs or {}, Wraps(found))


def test_a_tensor_in_another_is_read() -> None:
    outer = Wraps(TABLE)
    reads = read(lambda x: outer * x + outer)
    assert list(reads._others) == [TABLE.untyped_storage()._cdata]


def test_what_lies_nowhere_is_not() -> None:
    sparse, jagged = torch.eye(3).to_sparse(), nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert count(read(lambda x: torch.sparse.mm(sparse, x[:, None]))) == 0
    assert count(read(lambda x: jagged * 2)) >= 1  # what is inside lies somewhere


def test_one_hears_when_the_first_of_it_is_gone() -> None:
    tables = [torch.ones(3), torch.ones(3)]
    reads, said = read(lambda x: x * tables[0] * tables[1]), []
    assert reads.watch(lambda: said.append(1))
    part = tables[0][1:]
    del tables[0]
    assert said == []  # a part of it is still there
    del part
    assert said == [1]


def test_what_lies_elsewhere_by_now_is_not_in_place() -> None:
    tables = [torch.ones(3), torch.ones(3)]
    reads = read(lambda x: x * tables[0] * tables[1])
    assert reads.watch(lambda: None)
    assert reads.are_in_place()
    tables[1].untyped_storage().resize_(0)
    assert not reads.are_in_place()
    tables.clear()
    assert not reads.are_in_place()


@torch.library.custom_op("conserva_tests::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    return x * TABLE


def cond(x: Tensor) -> Any:
    return torch.ops.higher_order.cond(x.sum() > 0, lambda y: y * TABLE, lambda y: y + TABLE, (x,))


@pytest.mark.parametrize("compute", [scaled, cond], ids=["an operation of others", "one of functions"])
def test_what_cannot_be_followed_is_not_watched(compute: Any) -> None:
    reads = read(compute)
    assert count(reads) == 0
    assert not reads.watch(lambda: None)


def test_what_is_gone_at_once_is_not_watched() -> None:
    tables = [torch.ones(3)]
    assert not read(lambda x: x * tables.pop()).watch(lambda: None)


def test_what_was_moved_at_once_is_not_watched() -> None:
    table = torch.ones(3)
    reads = read(lambda x: x * table)
    table.untyped_storage().resize_(0)
    assert not reads.watch(lambda: None)


def test_nobody_hears_who_is_gone() -> None:
    tables, said = [torch.ones(3)], []
    reads = read(lambda x: x * tables[0])
    reads.watch(lambda: said.append(1))
    del reads
    tables.clear()
    assert said == []


class Tabled(nn.Module):
    """A model with a table that a library keeps for the last two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny.bert()

    def forward(self, input_ids: Tensor) -> Tensor:
        scores: Tensor = self.inner(input_ids=input_ids).logits
        return scores * table(input_ids.shape[1])


@functools.lru_cache(maxsize=2)
def table(size: int) -> Tensor:
    return torch.full((1,), 1.0 + size)


def explained(model: nn.Module, length: int, seed: int) -> None:
    given = {"input_ids": tiny.tokens(length=length, seed=seed)["input_ids"]}
    expected = conserva.relevance(model, given, 1, replay=False)
    assert torch.equal(conserva.relevance(model, given, 1).scores(), expected.scores())


def trusted(model: nn.Module) -> int:
    return len(kept._of_models[model].recorder._trusted)


def test_a_recording_goes_with_a_table_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    table.cache_clear()
    model = Tabled().eval()
    for seed in range(OFTEN):
        explained(model, 5, seed)
    assert trusted(model) == 1
    explained(model, 6, 0)
    assert trusted(model) == 1
    explained(model, 7, 0)  # there is no table for 5 any more
    assert trusted(model) == 0
    for seed in range(OFTEN):
        explained(model, 5, seed)
    assert trusted(model) == 0  # it might go again and again
    assert not kept._of_models[model].recorder._reads.keys() - kept._of_models[model].recorder._waiting.keys()


class Bare(Tape):
    """A tape that keeps nothing of Python's, like a graph."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        del self.compute


@pytest.mark.parametrize(("often", "tape"), [(AFTER + 1, Bare), (OFTEN, Tape)], ids=["waiting", "trusted"])
def test_recordings_go_when_the_weights_do(often: int, tape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(tape, monkeypatch)
    model = tiny.bert()
    for seed in range(often):
        conserva.relevance(model, tiny.tokens(seed=seed), 1)
    recorder = kept._of_models[model].recorder
    tapes = [weakref.ref(tape) for tape in recorder._trusted.values()]
    assert recorder.holds_memory
    model.double()
    gc.collect()
    assert not recorder.holds_memory
    assert not recorder.notes
    assert [tape() for tape in tapes] == [None] * len(tapes)


def test_a_recorder_goes_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Bare, monkeypatch)
    model = tiny.bert()
    for seed in range(AFTER + 1):
        conserva.relevance(model, tiny.tokens(seed=seed), 1)
    assert kept._of_models[model].recorder.holds_memory
    recorder = weakref.ref(kept._of_models[model].recorder)
    gc.collect()
    gc.disable()  # nothing holds itself
    try:
        kept._of_models.pop(model)
        assert recorder() is None
    finally:
        gc.enable()


def run(recorder: Recorder, value: float, tables: list[Tensor]) -> bool:
    found, replayed = recorder.run(None, {"x": torch.full((3,), value)}, lambda inputs: [inputs["x"] * tables[-1]])
    assert torch.equal(found[0], torch.full((3,), value) * tables[-1])
    return replayed


def test_a_table_that_goes_while_a_recording_is_made() -> None:
    tables = [torch.ones(3)]

    class Evicts(Tape):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            tables[0] = torch.ones(3)

    recorder = Recorder(GPU, room=Idle, record=Evicts)
    assert not any(run(recorder, float(i), tables) for i in range(9))
    assert not recorder.holds_memory
    assert not recorder.gave_up


def test_a_table_that_goes_while_a_recording_is_compared() -> None:
    tables = [torch.ones(3)]

    class Evicts(Tape):
        def replay(self, inputs: Mapping[str, Tensor]) -> Any:
            found = super().replay(inputs)
            tables[0] = torch.ones(3)
            return found

    recorder = Recorder(GPU, room=Idle, record=Evicts)
    assert not any(run(recorder, float(i), tables) for i in range(9))
    assert not recorder.holds_memory


def test_a_place_that_was_left_is_not_filled_anew() -> None:
    rooms: list[Any] = []

    class Numbered(Idle):
        def __init__(self, device: torch.device) -> None:
            super().__init__(device)
            rooms.append(self)

    recorder = Recorder(GPU, room=Numbered, record=Tape)
    tables = [torch.ones(3)]
    for i in range(OFTEN):
        run(recorder, float(i), tables)
        recorder.run("other", {"x": torch.full((3,), float(i))}, lambda inputs: [2 * inputs["x"]])
    assert len(rooms) == 1  # shared by recordings that are held
    recorder.distrust(recorder.key(None, {"x": tables[0]}, True))
    recorder.distrust(recorder.key("other", {"x": tables[0]}, True))
    assert not recorder.holds_memory
    for i in range(OFTEN):
        recorder.run("third", {"x": torch.full((3,), float(i))}, lambda inputs: [3 * inputs["x"]])
    assert len(rooms) == 2


def test_numbers_in_another_order_have_recordings_of_their_own() -> None:
    recorder = Recorder(GPU, room=Idle, record=Tape)
    x = torch.randn(2, 3, 4, 4)
    keys = [recorder.key(None, {"x": one}, True) for one in (x, x.to(memory_format=torch.channels_last))]
    assert keys[0] != keys[1]
    assert keys[0] == recorder.key(None, {"x": torch.zeros(2, 3, 4, 4)}, True)
    assert recorder.key(None, {"x": x[:1]}, True) == recorder.key(None, {"x": x[:1].clone()}, True)
