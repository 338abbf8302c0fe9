"""Loops inside `conserva.replaying`: the same relevance as without, and recordings that go with the block."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nested import nested_tensor

import conserva
import tiny
from conserva.engine import transfer
from conserva.replay.recorder import AFTER
from loops import OFTEN, loop, same
from tapes import Recorders, Stuck, Tape, record_by, rounded


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> Recorders:
    """Let tapes stand for CUDA graphs, so that models on a CPU have recordings."""
    return record_by(Tape, monkeypatch)


@pytest.mark.parametrize("rules", ["gi", "ah+ln", "exact"])
@pytest.mark.parametrize("ledger", [True, False])
def test_a_replay_is_the_same_relevance(rules: str, ledger: bool, taped: Recorders) -> None:
    model = tiny.bert()
    with conserva.replaying(model) as fast:
        loop(fast, model, target=1, rules=rules, ledger=ledger)
    assert taped.ran == [False] * (AFTER + 1) + [True] * (OFTEN - AFTER - 1)


def test_single_calls_are_never_recorded(taped: Recorders) -> None:
    model = tiny.bert()
    for seed in range(OFTEN):
        conserva.relevance(model, tiny.tokens(seed=seed), 1)
    assert taped.made == []


def test_several_targets_and_positional_arguments(taped: Recorders) -> None:
    model = tiny.bert()
    with conserva.replaying(model) as fast:
        for seed in range(OFTEN):
            ids = tiny.tokens(seed=seed)["input_ids"]
            expected = conserva.relevance(model, (ids,), targets=[0, [1, 0, 1], None])
            for found, one in zip(fast.relevance((ids,), targets=[0, [1, 0, 1], None]), expected, strict=True):
                same(found, one)
    assert taped.ran[-1]


def test_a_list_is_another_target_than_a_tuple(taped: Recorders) -> None:
    model = tiny.bert()
    with conserva.replaying(model) as fast:
        loop(fast, model, lambda seed: tiny.tokens(batch=2, seed=seed), target=[0, 1])
        assert taped.ran[-1]
        with pytest.raises(conserva.Error, match=r"target=\(0, 1\)"):
            fast.relevance(tiny.tokens(batch=2), (0, 1))


def test_what_one_replay_returned_the_next_does_not_change(taped: Recorders) -> None:
    model = tiny.bert()
    with conserva.replaying(model) as fast:
        results = [fast.relevance(tiny.tokens(seed=seed), 0) for seed in range(OFTEN)]
    assert taped.ran[-1]
    for seed, found in enumerate(results):
        same(found, conserva.relevance(model, tiny.tokens(seed=seed), 0))


@pytest.mark.parametrize(
    "changed",
    [{"target": 1}, {"rules": "exact"}, {"ledger": False}, {"at": "embeddings"}, {"checkpoint": "recompute"}],
    ids=str,
)
def test_another_way_to_explain_is_another_recording(changed: dict[str, Any], taped: Recorders) -> None:
    model = tiny.bert()
    how: dict[str, Any] = {"target": 0, "rules": "ah+ln", "ledger": True}
    with conserva.replaying(model) as fast:
        loop(fast, model, **how)
        assert taped.ran[-1]
        same(fast.relevance(tiny.tokens(seed=99), **{**how, **changed}),
             conserva.relevance(model, tiny.tokens(seed=99), **{**how, **changed}))  # fmt: skip
        assert not taped.ran[-1]


class TimeFirst(nn.Module):
    """A model whose samples lie along the second axis."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, bias=False)
        self.out = nn.Linear(8, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x).mean(0))  # type: ignore[no-any-return]


def test_the_axis_of_the_samples_tells_recordings_apart(taped: Recorders) -> None:
    """Along the first axis these samples would mix, which is refused: a recording of the second must not answer."""
    model = TimeFirst().eval()
    with conserva.replaying(model) as fast:
        for seed in range(OFTEN):
            x = torch.randn(4, 4, 8, generator=torch.Generator().manual_seed(seed))
            expected = conserva.relevance(model, x, 0, rules="exact", batch_dim=1)
            same(fast.relevance(x, 0, rules="exact", batch_dim=1), expected)
        assert taped.ran[-1]
        with pytest.raises(conserva.Error, match="first dimension is not the batch of 1 sample"):
            fast.relevance(x, 0, rules="exact", batch_dim=0)


def test_a_target_that_is_a_function_is_never_recorded(taped: Recorders) -> None:
    model, scale = tiny.bert(), [1.0]

    def target(output: Any) -> Tensor:
        return scale[0] * output.logits[:, 0]  # type: ignore[no-any-return]

    with conserva.replaying(model) as fast:
        for seed in range(OFTEN):
            scale[0] = float(seed + 1)
            same(
                fast.relevance(tiny.tokens(seed=seed), target),
                conserva.relevance(model, tiny.tokens(seed=seed), target),
            )
    assert not taped.ran


class Edged(nn.Module):
    """A model that takes more than rows and columns."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny.bert()

    def forward(self, input_ids: Tensor, edges: Tensor) -> Tensor:
        scores: Tensor = self.inner(input_ids=input_ids).logits
        weight = edges.to_dense().sum() if edges.is_sparse else sum(one.sum() for one in edges.unbind())
        return scores * weight


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("is_sparse", [True, False], ids=["sparse", "nested"])
def test_sparse_and_nested_tensors_are_not_recorded(is_sparse: bool, taped: Recorders) -> None:
    model, ones = Edged().eval(), torch.ones(2, 2, dtype=torch.long)
    edges = ones.to_sparse() if is_sparse else nested_tensor([ones, ones])
    with conserva.replaying(model) as fast:
        given = {"input_ids": tiny.tokens(batch=2)["input_ids"], "edges": edges}
        same(fast.relevance(given, 1), conserva.relevance(model, given, 1))
    assert not taped.ran


class Options(nn.Module):
    """A model with options that are not tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny.bert()

    def forward(self, input_ids: Tensor, plus: float = 0.0, minus: float = 0.0) -> Tensor:
        return (1 + plus - minus) * self.inner(input_ids).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("other", [{"plus": 3.0}, {"minus": 2.0}, {}], ids=str)
def test_other_options_are_another_recording(other: dict[str, float], taped: Recorders) -> None:
    model = Options().eval()
    with conserva.replaying(model) as fast:
        loop(fast, model, lambda seed: {"input_ids": tiny.tokens(seed=seed)["input_ids"], "plus": 2.0}, target=0)
        assert taped.ran[-1]
        inputs = {"input_ids": tiny.tokens(seed=99)["input_ids"], **other}
        same(fast.relevance(inputs, 0), conserva.relevance(model, inputs, 0))


def test_weights_may_change_in_place(taped: Recorders) -> None:
    model = tiny.bert()
    with conserva.replaying(model) as fast:
        for _ in range(3):
            loop(fast, model, target=0)
            with torch.no_grad():
                model.classifier.weight.mul_(2)
        assert taped.ran[-OFTEN:] == [True] * OFTEN


def test_recordings_go_with_the_block(taped: Recorders) -> None:
    model, tapes = tiny.bert(), []

    def stopped() -> None:
        with conserva.replaying(model) as fast:
            loop(fast, model, target=0)
            tapes.extend(weakref.ref(one.recording) for one in taped.last._trusted.values())
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        stopped()
    gc.collect()
    assert [tape() for tape in tapes] == [None]
    assert not taped.last.holds_memory
    with conserva.replaying(model) as fast:
        loop(fast, model, target=0)
    assert taped.ran[OFTEN:] == taped.ran[:OFTEN]  # it is counted anew


def test_what_is_wrong_is_said_in_a_replay_too(taped: Recorders) -> None:
    model = tiny.bert()
    with conserva.replaying(model) as fast:
        loop(fast, model, target=0)
        with torch.no_grad():
            model.bert.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
        with pytest.raises(conserva.Error, match="nan or inf"):
            fast.relevance(tiny.tokens(seed=3), 0)
        assert taped.ran[-1]


def test_what_is_wrong_is_said_at_the_first_call(taped: Recorders) -> None:
    model = tiny.bert()
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    with conserva.replaying(model) as fast, pytest.raises(conserva.Error, match="nan or inf"):
        fast.relevance(tiny.tokens(), 0)


def test_a_recording_whose_own_check_fails_is_not_tried_again(
    taped: Recorders, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, replay = tiny.bert(), Tape.replay
    with conserva.replaying(model) as fast:
        loop(fast, model, target=0)
        monkeypatch.setattr(Tape, "replay", lambda *given: [*replay(*given)[:-1], torch.tensor(False)])
        loop(fast, model, target=0)
    assert taped.ran[OFTEN:] == [True, *[False] * (OFTEN - 1)]


@pytest.mark.parametrize("tape", [Stuck, rounded(2**-20)])
def test_a_recording_that_disagrees_is_never_used(tape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorders, model = record_by(tape, monkeypatch), tiny.bert()
    with conserva.replaying(model) as fast:
        loop(fast, model, target=0)
    assert Tape.made == 1
    assert not any(recorders.ran)


class Counts(nn.Module):
    """A model that counts its calls."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.inner, self.where, self.calls = tiny.bert(), where, 0
        self.register_buffer("count", torch.zeros(()))
        self.hidden = [torch.zeros(())]

    def forward(self, input_ids: Tensor) -> Tensor:
        self.calls += 1
        self.hidden[0] += 1
        if self.where == "buffer":
            self.count += 1
        scale = {"buffer": self.count, "tensor": self.hidden[0], "number": self.calls}[self.where]
        return self.inner(input_ids=input_ids).logits * (1 + scale)  # type: ignore[no-any-return]


@pytest.mark.parametrize("where", ["buffer", "tensor", "number"])
def test_a_model_that_counts_its_calls_is_not_replayed(where: str, taped: Recorders) -> None:
    model = Counts(where).eval()
    with conserva.replaying(model) as fast:
        for seed in range(OFTEN):
            fast.relevance(tiny.tokens(seed=seed)["input_ids"], 0)
    assert not any(taped.ran)
    assert where != "buffer" or float(model.count) == OFTEN


def test_recordings_make_room_for_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Tape):
        def replay(self, inputs: Any) -> Any:
            if Tape.replays:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().replay(inputs)

    recorders, model = record_by(Full, monkeypatch), tiny.bert()
    with conserva.replaying(model) as fast:
        loop(fast, model, target=0)
        assert not recorders.last.holds_memory
    assert Tape.made == 1


def test_what_met_which_rule_is_that_of_the_shape(taped: Recorders) -> None:
    model = tiny.bert(max_position_embeddings=600)
    with conserva.replaying(model) as fast:
        for length in (8, 520):
            loop(fast, model, lambda seed, n=length: tiny.tokens(batch=1, length=n, seed=seed), target=0)
            assert taped.ran[-1]


def test_what_was_found_before_a_failure_comes_first(taped: Recorders, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.bert()
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    plain = conserva.engine.passes.Pass.__call__

    def fails(*given: Any) -> Any:
        plain(*given)
        raise ValueError("later")

    monkeypatch.setattr(conserva.engine.passes.Pass, "__call__", fails)
    with conserva.replaying(model) as fast, pytest.raises(conserva.Error, match="nan or inf"):
        fast.relevance(tiny.tokens(), 0)


def test_numbers_of_the_host_are_written_down_in_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = transfer.on_device([3, 1], torch.device("cpu"))
    monkeypatch.setattr(transfer, "is_recording", lambda: True)
    monkeypatch.setattr(torch, "tensor", lambda *_: pytest.fail("a copy of the host's memory"))
    found = transfer.on_device([3, 1], torch.device("cpu"))
    assert found.dtype == expected.dtype
    assert found.tolist() == [3, 1]
