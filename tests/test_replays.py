"""Relevance by recordings that stay with the model: the same as without, and only where it can be so."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import conserva
import tiny
from conserva import cuda_graph, kept, recording, transfer
from conserva.passes import Relevance
from conserva.recording import AFTER
from test_recording import Stuck, Tape, another_thread, record_by, rounded

OFTEN = AFTER + 4
pytestmark = pytest.mark.usefixtures("alone")


class Counting(Tape):
    """A tape that tells how often it was replayed."""

    replays = 0

    def replay(self, inputs: Any) -> Any:
        Counting.replays += 1
        return super().replay(inputs)


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tapes stand for CUDA graphs, so that models on a CPU have recordings."""
    Counting.replays = 0
    record_by(Counting, monkeypatch)


def same(found: Relevance, expected: Relevance) -> None:
    for place, wanted in expected.values.items():
        torch.testing.assert_close(found.values[place], wanted)
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.logits, expected.logits)
    assert list(found.coverage) == list(expected.coverage)
    assert (found.rules, found.plan, set(found.inputs)) == (expected.rules, expected.plan, set(expected.inputs))
    if expected.ledger is None:
        assert found.ledger is None
        return
    assert found.ledger is not None
    for name in ("output", "inputs", "positions", "biases"):
        torch.testing.assert_close(getattr(found.ledger, name), getattr(expected.ledger, name))
    assert dict(found.ledger.modules).keys() == dict(expected.ledger.modules).keys()
    for owner, wanted in expected.ledger.modules.items():
        torch.testing.assert_close(found.ledger.modules[owner], wanted)


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("rules", ["gi", "ah+ln", "exact"])
@pytest.mark.parametrize("ledger", [True, False])
def test_a_replay_is_the_same_relevance(rules: str, ledger: bool) -> None:
    model = tiny.bert()
    for seed in range(OFTEN):
        inputs = tiny.tokens(seed=seed)
        expected = conserva.relevance(model, inputs, 1, rules=rules, ledger=ledger, replay=False)
        same(conserva.relevance(model, inputs, 1, rules=rules, ledger=ledger), expected)
    assert Counting.replays >= 2


@pytest.mark.usefixtures("taped")
def test_several_targets_and_positional_arguments() -> None:
    model = tiny.bert()
    for seed in range(OFTEN):
        ids = tiny.tokens(seed=seed)["input_ids"]
        expected = conserva.relevance(model, (ids,), targets=[0, [1, 0, 1], None], replay=False)
        for found, one in zip(conserva.relevance(model, (ids,), targets=[0, [1, 0, 1], None]), expected, strict=True):
            same(found, one)
    assert Counting.replays >= 2


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("by_name", [True, False])
def test_the_same_inputs_again_and_again(by_name: bool) -> None:
    model, inputs = tiny.bert(), tiny.tokens()
    given: Any = inputs if by_name else (inputs["input_ids"],)
    expected = conserva.relevance(model, given, 1, replay=False)
    for _ in range(OFTEN):
        same(conserva.relevance(model, given, 1), expected)
    assert Counting.replays >= 2


@pytest.mark.usefixtures("taped")
def test_a_list_is_no_tuple() -> None:
    model = tiny.bert()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(batch=2, seed=seed), [0, 1])
    assert Counting.replays >= 2
    with pytest.raises(conserva.Error, match=r"target=\(0, 1\)"):
        conserva.relevance(model, tiny.tokens(batch=2), (0, 1))


@pytest.mark.usefixtures("taped")
def test_what_one_replay_returned_the_next_does_not_change() -> None:
    model = tiny.bert()
    results = [conserva.relevance(model, tiny.tokens(seed=seed), 0) for seed in range(OFTEN + 2)]
    for seed, found in enumerate(results):
        same(found, conserva.relevance(model, tiny.tokens(seed=seed), 0, replay=False))


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize(
    "changed",
    [
        {"target": 1},
        {"rules": "exact"},
        {"ledger": False},
        {"at": "embeddings"},
        {"checkpoint": "recompute"},
    ],
    ids=str,
)
def test_another_way_to_explain_is_another_recording(changed: dict[str, Any]) -> None:
    model = tiny.bert()
    how: dict[str, Any] = {"target": 0, "rules": "ah+ln", "ledger": True}
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), **how)
    inputs = tiny.tokens(seed=99)
    found = conserva.relevance(model, inputs, **{**how, **changed})
    same(found, conserva.relevance(model, inputs, **{**how, **changed}, replay=False))


@pytest.mark.usefixtures("taped")
def test_weights_that_were_exchanged_are_seen() -> None:
    model = tiny.bert()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 0)
    before = Counting.replays
    other = {name: torch.randn_like(x) for name, x in model.state_dict().items() if x.is_floating_point()}
    model.load_state_dict(other, strict=False, assign=True)
    inputs = tiny.tokens(seed=1)
    same(conserva.relevance(model, inputs, 0), conserva.relevance(model, inputs, 0, replay=False))
    assert Counting.replays == before


@pytest.mark.usefixtures("taped")
def test_the_axis_of_the_samples_tells_recordings_apart() -> None:
    model = TimeFirst().eval()
    for seed in range(OFTEN):
        x = torch.randn(4, 4, 8, generator=torch.Generator().manual_seed(seed))
        for axis in (0, 1):
            expected = conserva.relevance(model, x, 0, rules="exact", batch_dim=axis, replay=False)
            same(conserva.relevance(model, x, 0, rules="exact", batch_dim=axis), expected)
    assert Counting.replays >= 2


class TimeFirst(torch.nn.Module):
    """A model whose samples lie along the second axis."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, bias=False)
        self.out = torch.nn.Linear(8, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x).mean(0))  # type: ignore[no-any-return]


def test_inputs_with_a_graph_of_their_own_do_not_pile_up() -> None:
    x = torch.randn(3, requires_grad=True) * 2
    assert not cuda_graph.copied({"x": x})["x"].requires_grad


def test_what_many_calls_leave_is_bounded(taped: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_SHAPES", 5)
    model = tiny.bert()
    for length in range(2, 20):
        conserva.relevance(model, tiny.tokens(length=length), 0)
    recorder = kept._of_models[model].recorder
    assert len(recorder._shapes) <= 5
    assert recorder.notes == {}


@pytest.mark.usefixtures("taped")
def test_a_target_that_is_a_function_is_never_recorded() -> None:
    model, scale = tiny.bert(), [1.0]

    def target(output: Any) -> Tensor:
        return scale[0] * output.logits[:, 0]  # type: ignore[no-any-return]

    for seed in range(OFTEN):
        scale[0] = float(seed + 1)
        inputs = tiny.tokens(seed=seed)
        same(conserva.relevance(model, inputs, target), conserva.relevance(model, inputs, target, replay=False))
    assert Counting.replays == 0


@pytest.mark.usefixtures("taped")
def test_what_is_wrong_is_said_in_a_replay_too() -> None:
    model = tiny.bert()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 0)
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(conserva.Error, match="nan or inf"):
        conserva.relevance(model, tiny.tokens(seed=3), 0)


def test_a_recording_that_does_not_follow_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Stuck, monkeypatch)
    model = tiny.bert()
    for seed in range(OFTEN):
        inputs = tiny.tokens(seed=seed)
        same(conserva.relevance(model, inputs, 0), conserva.relevance(model, inputs, 0, replay=False))


def test_a_recording_that_is_not_used_leaves_no_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(rounded(0.1), monkeypatch)
    model = tiny.bert()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 0)
    recorder = kept._of_models[model].recorder
    assert any(shape.is_unfit for shape in recorder._shapes.values())
    assert recorder.notes == {}


def test_numbers_of_the_host_are_written_down_in_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = transfer.on_device([3, 1], torch.device("cpu"))
    monkeypatch.setattr(transfer, "is_recording", lambda: True)
    monkeypatch.setattr(torch, "tensor", lambda *_: pytest.fail("a copy of the host's memory"))
    found = transfer.on_device([3, 1], torch.device("cpu"))
    assert found.dtype == expected.dtype
    assert found.tolist() == [3, 1]


def test_without_a_gpu_nothing_is_recorded() -> None:
    model, inputs = tiny.bert(), tiny.tokens()
    same(conserva.relevance(model, inputs, 0), conserva.relevance(model, inputs, 0, replay=False))
    assert model not in kept._of_models


def _tapes(model: Any) -> list[Any]:
    return list(kept._of_models[model].recorder._trusted.values())


def test_recordings_go_with_their_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.bert()
    record_by(Counting, monkeypatch)
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 0)
    assert Counting.replays
    for place in _tapes(model):
        place.compute = None  # which a CUDA graph does not keep
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


class Options(torch.nn.Module):
    """A model with options that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny.bert()

    def forward(self, input_ids: Tensor, plus: float = 0.0, minus: float = 0.0) -> Tensor:
        return (1 + plus - minus) * self.inner(input_ids).logits  # type: ignore[no-any-return]


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("other", [{"plus": 3.0}, {"minus": 2.0}, {}])
def test_other_options_are_another_recording(other: dict[str, float]) -> None:
    model = Options().eval()
    for seed in range(OFTEN):
        conserva.relevance(model, {"input_ids": tiny.tokens(seed=seed)["input_ids"], "plus": 2.0}, 0)
    inputs = {"input_ids": tiny.tokens(seed=99)["input_ids"], **other}
    same(conserva.relevance(model, inputs, 0), conserva.relevance(model, inputs, 0, replay=False))
    assert Counting.replays >= 2


@pytest.mark.usefixtures("taped")
def test_a_target_that_is_refused_is_refused_in_a_replay_too() -> None:
    model = tiny.bert()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 1)
    with pytest.raises(conserva.Error, match="target=True"):
        conserva.relevance(model, tiny.tokens(seed=9), True)


@pytest.mark.usefixtures("taped")
def test_what_is_wrong_is_said_at_the_first_call() -> None:
    model = tiny.bert()
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(conserva.Error, match="nan or inf"):
        conserva.relevance(model, tiny.tokens(), 0)


@pytest.mark.usefixtures("taped")
def test_notes_that_are_gone_cost_a_pass() -> None:
    model = tiny.bert()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 0)
    kept._of_models[model].recorder.notes.clear()
    inputs = tiny.tokens(seed=99)
    same(conserva.relevance(model, inputs, 0), conserva.relevance(model, inputs, 0, replay=False))


def test_recordings_make_room_for_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Counting):
        def replay(self, inputs: Any) -> Any:
            if Counting.replays:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().replay(inputs)

    Counting.replays = 0
    record_by(Full, monkeypatch)
    model = tiny.bert()
    for seed in range(OFTEN):
        inputs = tiny.tokens(seed=seed)
        same(conserva.relevance(model, inputs, 0), conserva.relevance(model, inputs, 0, replay=False))
    assert not kept._of_models[model].recorder.holds_memory


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("replay", [None, True])
def test_whoever_asks_for_replays_does_not_wait_for_threads(replay: bool | None) -> None:
    model = tiny.bert()
    with another_thread():
        for seed in range(OFTEN):
            conserva.relevance(model, tiny.tokens(seed=seed), 0, replay=replay)
    assert (Counting.replays > 0) == bool(replay)


@pytest.mark.usefixtures("taped")
def test_what_met_which_rule_is_that_of_the_shape() -> None:
    model = tiny.bert(max_position_embeddings=600)
    for seed in range(OFTEN):
        for length in (8, 520):
            inputs = tiny.tokens(batch=1, length=length, seed=seed)
            found = conserva.relevance(model, inputs, 0, rules="ah+ln")
            assert list(found.coverage) == list(
                conserva.relevance(model, inputs, 0, rules="ah+ln", replay=False).coverage
            )
    assert Counting.replays >= 2


@pytest.mark.usefixtures("taped")
def test_what_was_found_before_a_failure_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.bert()
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    plain = conserva.passes.Pass.__call__

    def fails(*given: Any) -> Any:
        plain(*given)
        raise ValueError("later")

    monkeypatch.setattr(conserva.passes.Pass, "__call__", fails)
    with pytest.raises(conserva.Error, match="nan or inf"):
        conserva.relevance(model, tiny.tokens(), 0)
