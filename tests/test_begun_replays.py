"""Replays that begin while the model is still looked at: taken where it is as it was, forgotten where it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import conserva
import tiny
from conserva import kept
from conserva.recording import Begun, Recorder
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


def test_nothing_begins_where_memory_was_taken_from_under_a_weight() -> None:
    there, table = Recorder(GPU, room=Idle, record=Spoilt), torch.ones(3)
    for i in range(OFTEN):
        there.run(None, {"x": torch.full((3,), float(i))}, lambda inputs: [inputs["x"] * table])
    given = {"x": torch.ones(3)}
    assert there.begin(None, given) is not None
    table.untyped_storage().resize_(0)  # as sharded weights do, which are there only while they are needed
    before = Spoilt.replays
    assert there.begin(None, given) is None
    assert Spoilt.replays == before


class Counts(nn.Module):
    """A model that counts its calls, in a tensor."""

    calls: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = tiny.bert(), how
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, **inputs: Tensor) -> Any:
        if self.how == "in place":
            self.calls.add_(1)
        elif self.how == "by name":
            torch.add(self.calls, 1, out=self.calls)
        elif self.how == "a list":
            torch._foreach_add_([self.calls], 1)
        elif self.how == "a view":
            self.calls.view(1)[0] = 5.0
        return self.inner(**inputs)


@pytest.mark.parametrize("how", ["in place", "by name", "a list", "a view"])
def test_a_model_that_writes_what_it_holds_is_not_recorded(how: str) -> None:
    model = Counts(how).eval()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 1)
    assert not kept._of_models[model].recorder.holds_memory
    assert Spoilt.replays == 0


def test_one_that_does_not_is() -> None:
    trusted(Counts("not at all").eval())
