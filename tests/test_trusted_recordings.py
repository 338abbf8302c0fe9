"""When a recording is trusted: after it gave what the plain computation gave, on inputs that it was not made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from conserva import recording
from conserva.recording import AFTER, Recorder, varied
from test_recording import GPU, Idle, Stuck, Tape, double, rounded, stream

pytestmark = pytest.mark.usefixtures("alone")


def test_a_recording_that_does_not_follow_its_inputs_is_never_used() -> None:
    assert not any(stream(Recorder(GPU, room=Idle, record=Stuck), 9))


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
    recorder = Recorder(GPU, room=Idle, record=tape, vary=varied if may_vary else None)
    computed = []

    def twice(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        computed.append(inputs["input_ids"].tolist())
        return [2 * inputs["input_ids"]]

    given = torch.tensor([[1, 2, 3]])
    for _ in range(AFTER + 5):
        found, replayed = recorder.run(None, {"input_ids": given.clone()}, twice)
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


def test_a_replay_that_fails_is_given_up_and_what_was_found_stands() -> None:
    class Fails(Tape):
        def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    recorder = Recorder(GPU, room=Idle, record=Fails)
    assert not any(stream(recorder, 9))
    assert not recorder.holds_memory


def test_numbers_that_are_none_are_the_same() -> None:
    recorder = Recorder(GPU, room=Idle, record=Tape, rounding=1e-4)
    for i in range(9):
        x = torch.full((3,), float(i))
        *_, replayed = recorder.run(None, {"x": x}, lambda given: [given["x"][:0]], cautious=False)
    assert replayed


def test_another_type_is_another_number_and_no_failure() -> None:
    class Wider(Tape):
        def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
            return [x.double() for x in super().replay(inputs)]

    recorder = Recorder(GPU, room=Idle, record=Wider)
    assert not any(stream(recorder, 9))
    recorder._record = Tape
    assert any(stream(recorder, 9, "another"))


def test_a_tensor_that_is_filled_anew_is_another_input() -> None:
    recorder, x = Recorder(GPU, room=Idle, record=Tape), torch.ones(3)
    for i in range(AFTER + 3):
        x.fill_(float(i))
        *_, replayed = recorder.run(None, {"x": x}, double)
    assert replayed


def test_a_number_has_no_other_places() -> None:
    recorder, ids = Recorder(GPU, room=Idle, record=Tape), {"input_ids": torch.tensor(3)}
    for _ in range(AFTER + 5):
        recorder.run(None, ids, lambda given: [2 * given["input_ids"]])
    assert recorder.holds_memory  # it waits for another number


def test_what_is_unfit_is_forgotten_with_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_SHAPES", 3)
    recorder = Recorder(GPU, room=Idle, record=rounded(0.1))
    for what in range(9):
        stream(recorder, AFTER + 2, what)
    assert len(recorder._shapes) <= 3
