"""Replays that begin while the model is still looked at: taken where it is as it was, forgotten where it is not."""

from __future__ import annotations

import ctypes
import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import conserva
import tiny
from conserva import kept, replays, state
from conserva.recording import Begun, Recorder
from test_kept import Watch
from test_recording import GPU, Idle, Tape, double, record_by, stream
from test_replays import OFTEN, same

pytestmark = pytest.mark.usefixtures("alone")


class Spoilt(Tape):
    """A tape that counts its replays, and can be spoilt, so that whoever takes one shows it."""

    replays = 0
    is_spoilt = False

    def replay(self, inputs: Any) -> Any:
        Spoilt.replays += 1
        if not Spoilt.is_spoilt:
            return super().replay(inputs)
        *numbers, passed = super().replay(inputs)
        return [*(x + 1 for x in numbers), passed]


@pytest.fixture(autouse=True)
def taped(monkeypatch: pytest.MonkeyPatch) -> None:
    Spoilt.replays, Spoilt.is_spoilt = 0, False
    record_by(Spoilt, monkeypatch)


def trusted(model: nn.Module | None = None) -> Any:
    """Return a model whose recording is trusted."""
    model = model or tiny.bert()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 1)
    assert kept._of_models[model].recorder._trusted
    return model


def replays_of_a_call(model: nn.Module, seed: int = 9) -> int:
    """Return how many replays there are while one call is explained, rightly."""
    before, given = Spoilt.replays, tiny.tokens(seed=seed)
    found = conserva.relevance(model, given, 1)
    count = Spoilt.replays - before
    same(found, conserva.relevance(model, given, 1, replay=False))
    return count


def test_what_was_begun_is_taken() -> None:
    model = trusted()
    assert [replays_of_a_call(model, seed) for seed in range(3)] == [1, 1, 1]


def test_it_begins_before_the_model_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    model, looks = trusted(), kept.State
    before, seen = Spoilt.replays, []

    def looked(one: nn.Module) -> Any:
        seen.append(Spoilt.replays - before)
        return looks(one)

    monkeypatch.setattr(kept, "State", looked)
    conserva.relevance(model, tiny.tokens(seed=9), 1)
    assert seen == [1]


def test_a_changed_model_is_not_replayed() -> None:
    model = trusted()
    Spoilt.is_spoilt = True
    model.config.chunk_size_feed_forward = 7
    assert [replays_of_a_call(model, seed) for seed in range(2)] == [1, 0]  # the first could not know


def test_nor_one_with_other_weights() -> None:
    model = trusted()
    weight, there = model.classifier.weight, model.classifier.weight.data
    Spoilt.is_spoilt = True
    weight.data = 2 * there
    assert [replays_of_a_call(model, seed) for seed in range(2)] == [1, 0]
    assert there.isfinite().all()  # it was still there to be read


def test_a_model_that_is_watched_is_not_replayed_in_vain_again() -> None:
    model = trusted()
    Spoilt.is_spoilt = True
    handle = model.bert.register_forward_hook(lambda *_: None)
    assert [replays_of_a_call(model, seed) for seed in range(3)] == [1, 0, 0]
    handle.remove()
    Spoilt.is_spoilt = False
    assert [replays_of_a_call(model, seed) for seed in range(3)] == [1, 1, 1]


def test_one_that_changes_to_and_fro_is_not_replayed_in_vain() -> None:
    model = tiny.bert()
    for seed in range(OFTEN):
        for size in (0, 7):
            model.config.chunk_size_feed_forward = size
            conserva.relevance(model, tiny.tokens(seed=seed), 1)
    for size in (0, 7, 0, 7):
        model.config.chunk_size_feed_forward = size
        assert replays_of_a_call(model) == 1


def test_nor_is_one_that_is_watched_now_and_then() -> None:
    model = trusted()
    for _ in range(3):
        handle = model.bert.register_forward_hook(lambda *_: None)
        count = replays_of_a_call(model)
        handle.remove()
        replays_of_a_call(model)
    assert count == 0


def test_nothing_begins_while_someone_watches() -> None:
    model, before = trusted(), Spoilt.replays
    with Watch():
        conserva.relevance(model, tiny.tokens(seed=1), 1)
    assert Spoilt.replays == before


def test_nothing_is_presumed_after_one_look() -> None:
    model = tiny.bert()
    assert kept.presumed(model) is None
    place = kept.recorded(model)
    assert kept.presumed(model) is None
    assert kept.recorded(model) == place
    assert place is not None
    assert kept.presumed(model) == place
    place.recorder.vain.add("this")
    assert kept.presumed(model, "this") is None
    assert kept.presumed(model) == place
    place.recorder.drop()
    assert kept.presumed(model) is None


def test_what_pays_nowhere_is_not_presumed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, met = tiny.bert(), []
    presumed = kept.presumed
    monkeypatch.setattr("conserva.replays.presumed", lambda *given: met.append(presumed(*given)) or met[-1])
    monkeypatch.setattr(Idle, "behind", lambda room: 1e9)
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 1)
    assert met[-1] is None


@pytest.mark.parametrize("replay", [None, True])
def test_the_careful_and_the_others_begin(replay: bool | None) -> None:
    model = tiny.bert()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 1, replay=replay)
    place = kept.presumed(model)
    assert place is not None
    begun: list[Begun | None] = []
    begin = place.recorder.begin
    place.recorder.begin = lambda *args, **how: begun.append(begin(*args, **how)) or begun[-1]  # type: ignore[method-assign]
    conserva.relevance(model, tiny.tokens(seed=1), 1, replay=replay)
    assert begun != [None]
    assert len(begun) == 1


def test_masks_that_hide_have_a_recording_of_their_own() -> None:
    model = trusted()
    Spoilt.is_spoilt = True
    given = tiny.tokens(seed=1)
    given["attention_mask"][:, -2:] = 0
    same(conserva.relevance(model, given, 1), conserva.relevance(model, given, 1, replay=False))


def test_a_replay_that_fails_when_it_begins_is_as_one_that_fails_later(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trusted()

    def fails(self: Any, inputs: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(Spoilt, "replay", fails)
    assert replays_of_a_call(model) == 0
    assert not kept._of_models[model].recorder.holds_memory


def test_whatever_fails_then_is_no_matter_for_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trusted()

    def fails(self: Any, inputs: Any) -> Any:
        raise ValueError("the numbers of another model")

    monkeypatch.setattr(Spoilt, "replay", fails)
    model.config.chunk_size_feed_forward = 7
    assert replays_of_a_call(model) == 0


def alive_in_plain_passes(tape: Any, monkeypatch: pytest.MonkeyPatch, *, fail: bool) -> list[bool]:
    """Return a list that tells of every plain pass from now on whether a tape is there; the first may fail."""
    seen: list[bool] = []
    run = replays._run

    def watched(recorder: Any, what: Any, call: Any, tensors: Any, compute: Any, cautious: Any, begun: Any) -> Any:
        def computed(given: Any) -> Any:
            gc.collect()
            seen.append(tape() is not None)
            if fail and len(seen) == 1:
                raise torch.OutOfMemoryError("no memory")
            return compute(given)

        return run(recorder, what, call, tensors, computed, cautious, begun)

    monkeypatch.setattr(replays, "_run", watched)
    return seen


def test_what_is_forgotten_holds_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trusted()
    tape = weakref.ref(next(iter(kept._of_models[model].recorder._trusted.values())))
    seen = alive_in_plain_passes(tape, monkeypatch, fail=True)
    model.config.chunk_size_feed_forward = 7
    assert replays_of_a_call(model) == 1
    assert seen == [True, False]  # the recordings were let go of, for their memory


def test_nor_do_those_of_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trusted()
    tape = weakref.ref(next(iter(kept._of_models[model].recorder._trusted.values())))
    seen = alive_in_plain_passes(tape, monkeypatch, fail=False)
    there = model.classifier.weight.data
    model.classifier.weight.data = 2 * there
    assert replays_of_a_call(model) == 1
    assert seen == [False]


def recorder() -> Recorder:
    made = Recorder(GPU, room=Idle, record=Spoilt)
    assert stream(made, OFTEN)[-1]
    return made


def test_what_nobody_trusts_does_not_begin() -> None:
    there, x = recorder(), torch.ones(3)
    assert there.begin(None, {"x": x}) is not None
    assert there.begin("another", {"x": x}) is None
    assert there.begin(None, {"x": torch.ones(4)}) is None
    assert there.begin(None, {"x": torch.ones(3, device="meta")}) is None
    there.distrust(there.key(None, {"x": x}, True))
    assert there.begin(None, {"x": x}) is None


def test_what_was_begun_by_another_recording_is_not_taken() -> None:
    there, x = recorder(), torch.ones(3)
    begun = there.begin(None, {"x": x})
    assert begun is not None
    assert there.run(None, {"x": x}, double, begun=begun)[0] is begun.found
    other = Begun(Spoilt(double, {"x": x}, None), [x, x])
    found, is_replay = there.run(None, {"x": x}, double, begun=other)
    assert is_replay
    assert torch.equal(found[0], 2 * x)


def test_what_was_let_go_of_meanwhile_is_not_taken() -> None:
    there, x = recorder(), torch.ones(3)
    begun = there.begin(None, {"x": x})
    there.distrust(there.key(None, {"x": x}, True))
    assert not there.run(None, {"x": x}, double, begun=begun)[1]


class Silent(Tape):
    """A tape that computes nothing, and counts."""

    replays = 0

    def replay(self, inputs: Any) -> Any:
        Silent.replays += 1
        return [2 * inputs["x"]]


def test_nothing_is_replayed_where_memory_was_taken_from_under_a_table() -> None:
    there, table = Recorder(GPU, room=Idle, record=Silent), 2 * torch.ones(3)
    scaled = partial(lambda factor, inputs: [inputs["x"] * factor], table)
    for i in range(OFTEN):
        there.run(None, {"x": torch.full((3,), float(i))}, scaled)
    given = {"x": torch.ones(3)}
    assert there.begin(None, given) is not None
    before = Silent.replays
    table.untyped_storage().resize_(0)  # as sharded weights do, which are there only while they are needed
    assert there.begin(None, given) is None
    assert not there.run(None, given, double)[1]
    assert not there.holds_memory
    assert Silent.replays == before


def test_nor_where_run_finds_it_first() -> None:
    there, table = Recorder(GPU, room=Idle, record=Silent), 2 * torch.ones(3)
    scaled = partial(lambda factor, inputs: [inputs["x"] * factor], table)
    for i in range(OFTEN):
        there.run(None, {"x": torch.full((3,), float(i))}, scaled)
    before = Silent.replays
    table.untyped_storage().resize_(0)
    assert not there.run(None, {"x": torch.ones(3)}, double)[1]
    assert Silent.replays == before


class Scaled(nn.Module):
    """A model with numbers that a kernel past torch reads, which is given their address."""

    scales: Tensor

    def __init__(self, is_weight: bool) -> None:
        super().__init__()
        self.inner = tiny.bert()
        if is_weight:
            self.scales = nn.Parameter(torch.ones(1), requires_grad=False)
        else:
            self.register_buffer("scales", torch.ones(1))

    def forward(self, **inputs: Tensor) -> Tensor:
        found, scale = self.inner(**inputs).logits, torch.empty(1)
        ctypes.memmove(scale.data_ptr(), self.scales.data_ptr(), scale.nbytes)
        return found * scale  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_weight", [True, False])
def test_nothing_begins_where_a_tensor_of_the_model_is_another(is_weight: bool) -> None:
    model = trusted(Scaled(is_weight).eval())
    assert replays_of_a_call(model) == 1
    model.scales.data = torch.full((1,), 3.0)
    assert replays_of_a_call(model) == 0


class Odd(Tensor):
    """A tensor that does not tell what it holds."""

    def __tensor_flatten__(self) -> Any:
        raise ValueError("nobody asks me")

    @staticmethod
    def __tensor_unflatten__(*_: Any) -> Any:
        raise ValueError("nobody asks me")


def test_nothing_begins_where_a_tensor_does_not_tell_where_it_lies() -> None:
    model: Any = tiny.bert()
    model.odd = torch.ones(2).as_subclass(Odd)
    assert replays_of_a_call(trusted(model)) == 1  # which began after the model was looked at
    assert kept.recorded(model) is not None
    assert kept.presumed(model) is None


class Counts(nn.Module):
    """A model that counts its calls, in a tensor."""

    calls: Tensor

    def __init__(self, is_counting: bool) -> None:
        super().__init__()
        self.inner, self.is_counting = tiny.bert(), is_counting
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, **inputs: Tensor) -> Any:
        if self.is_counting:
            self.calls[:1] += 1
        return self.inner(**inputs)


@pytest.mark.parametrize("is_counting", [True, False])
def test_a_model_that_writes_what_it_holds_is_not_recorded(is_counting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a GPU, where nobody looks at what a tensor holds.
    monkeypatch.setattr(state.State, "_tensor", lambda self, x: self.settings.extend(state.place_of(x)))
    model = Counts(is_counting).eval()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 1)
    assert kept._of_models[model].recorder.holds_memory != is_counting
