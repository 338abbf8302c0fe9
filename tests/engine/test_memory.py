"""How what the backward pass needs is kept: the plans, what is counted, and what happens when memory runs out."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import conserva
from conserva.engine import memory
from conserva.engine.memory import Keeper, Plan
from gated_models import assert_same, explained
from tiny import bert, llama, tokens

CPU = torch.device("cpu")
PLANS = ("auto", "whole", "recompute", "offload")


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGE", 1)
    monkeypatch.setattr(memory, "SMALL_BYTES", 1)


def keeper(monkeypatch: pytest.MonkeyPatch, whole: float, device: float = math.inf, free: float = 1000) -> Keeper:
    monkeypatch.setattr(memory, "free_memory", lambda device: free)
    monkeypatch.setattr(memory, "OFFLOADED", ("cpu",))
    return Keeper(Plan("made up", whole, device), CPU)


def of_bytes(size: int) -> Tensor:
    return torch.arange(size, dtype=torch.uint8)


# What is counted


def test_activations_stay_whole_until_their_share_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    keep, kept = keeper(monkeypatch, whole=0.5), [of_bytes(200) for _ in range(4)]
    assert [keep.keeps_whole(x) for x in kept] == [True, True, False, False]
    assert keep.keeps_whole(kept[0])
    assert keep.keeps_whole(kept[1].view(2, 100)[1])  # the same memory


def test_what_is_gone_no_longer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    keep, first = keeper(monkeypatch, whole=0.5), of_bytes(400)
    assert keep.keeps_whole(first)
    assert not keep.keeps_whole(of_bytes(400))
    del first
    assert keep.keeps_whole(of_bytes(400))


def test_room_is_left_for_what_is_made_in_passing(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = keeper(monkeypatch, whole=0, device=0.9)
    assert keep.pack(first := of_bytes(300)).data_ptr() == first.data_ptr()
    assert keep.is_large(of_bytes(100))  # four of which will be there at once
    assert keep.pack(second := of_bytes(200)).data_ptr() == second.data_ptr()
    assert keep.pack(third := of_bytes(200)).data_ptr() != third.data_ptr()


def test_small_tensors_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SMALL_BYTES", 100)
    keep = keeper(monkeypatch, whole=0, device=0)
    small, large = of_bytes(99), of_bytes(100)
    assert keep.keeps_whole(small)
    assert not keep.keeps_whole(large)
    assert keep.pack(small).data_ptr() == small.data_ptr()
    assert keep.leanest == "whole"
    assert keep.pack(large).data_ptr() != large.data_ptr()


def test_what_exceeds_the_device_share_goes_to_the_host_once(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = keeper(monkeypatch, whole=0.2, device=0.5)
    whole, stays, goes = of_bytes(200), of_bytes(200), of_bytes(200)
    assert keep.keeps_whole(whole)
    for x in (whole, stays, stays[50:]):
        assert keep.pack(x).data_ptr() == x.data_ptr()
    assert keep.leanest == "whole"
    packed = keep.pack(goes)
    assert keep.leanest == "offload"
    assert packed.data_ptr() != goes.data_ptr()
    assert keep.pack(goes) is packed
    assert torch.equal(keep.unpack(packed, CPU), goes)
    goes += 1
    assert torch.equal(keep.unpack(keep.pack(goes), CPU), goes)
    part = keep.pack(goes[20:])
    assert torch.equal(keep.unpack(part, CPU), goes[20:])


def test_unknown_memory_is_unlimited_unless_nothing_may_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keeper(monkeypatch, whole=0.1, free=math.inf).keeps_whole(of_bytes(10))
    assert not keeper(monkeypatch, whole=0, free=math.inf).keeps_whole(of_bytes(10))


@pytest.mark.parametrize("plan", ["whole", "recompute", "offload"])
def test_only_auto_asks_how_much_memory_is_free(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(memory, "OFFLOADED", ("cpu",))
    monkeypatch.setattr(memory, "free_memory", lambda device: asked.append(device) or 1e12)
    conserva.relevance(llama(), tokens(), 1, checkpoint=plan)
    assert not asked
    conserva.relevance(llama(), tokens(), 1)
    assert asked == [CPU]


def test_free_memory_is_known_or_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.free_memory(CPU) > 0

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(memory.Path, "read_text", lambda *_, **__: "MemTotal: 9 kB\nMemAvailable:    7 kB\n")
    assert memory.free_memory(CPU) == 7 * 1024
    monkeypatch.setattr(memory.Path, "read_text", lambda *_, **__: "")
    assert 0 < memory.free_memory(CPU) < math.inf
    monkeypatch.setattr(memory.os, "sysconf", unknown)
    assert memory.free_memory(CPU) == math.inf


def test_a_host_without_room_is_told_before_the_system_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "OFFLOADED", ("cpu",))
    x = torch.zeros(memory.SMALL_BYTES)
    for room, fits in ((memory.LEFT_TO_HOST + x.nbytes, True), (memory.LEFT_TO_HOST + x.nbytes - 1, False)):
        monkeypatch.setattr(memory, "host_memory", lambda room=room: room)
        keeper = memory.Keeper(memory.PLANS["offload"], CPU)
        if fits:
            assert keeper.pack(x) is not x
        else:
            with pytest.raises(MemoryError, match="not enough free memory"):
                keeper.pack(x)


def test_what_is_packed_forgets_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    x, other = torch.randn(3, requires_grad=True), torch.randn(3)
    x.__dict__["conserva_trail"] = other
    packed = keeper(monkeypatch, whole=1).pack(x)
    assert not packed.__dict__
    assert not packed.requires_grad


# Plans


@pytest.mark.parametrize("given", ["always", "", "Whole", None, 3, True])
def test_a_plan_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(conserva.Error, match="'auto', 'whole', 'recompute', 'offload'") as raised:
        conserva.relevance(bert(), tokens(), 1, checkpoint=given)  # type: ignore[call-overload]
    assert f"checkpoint={given!r}" in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("cuda", [(0.08, 0.85), (0, 0.4), (0, 0)]), ("cpu", [(0.5, math.inf), (0, math.inf)])],
)
def test_auto_becomes_leaner_step_by_step(kind: str, expected: list[tuple[float, float]]) -> None:
    assert [(plan.whole, plan.device) for plan in memory.plans("auto", torch.device(kind))] == expected


@pytest.mark.parametrize(
    ("given", "offloads", "ran"),
    [
        ("auto", False, "whole"), ("whole", False, "whole"), ("recompute", False, "recompute"),
        ("offload", False, "recompute"), ("offload", True, "offload"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("make", [bert, llama])
def test_the_result_says_what_was_done(
    make: Callable[[], nn.Module], given: str, offloads: bool, ran: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if offloads:
        monkeypatch.setattr(memory, "OFFLOADED", ("cpu",))
    plain = conserva.relevance(make().double(), tokens(), 1, rules="exact", checkpoint="whole")
    result = conserva.relevance(make().double(), tokens(), 1, rules="exact", checkpoint=given)
    assert result.plan == ran
    torch.testing.assert_close(result.scores(), plain.scores(), rtol=1e-12, atol=1e-12)


def test_auto_begins_whole_and_goes_on_leaner(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = llama(num_hidden_layers=4).double(), tokens()
    plain = conserva.relevance(model, inputs, 1, rules="exact", checkpoint="whole")
    wide = 3 * 7 * 48 * 8
    monkeypatch.setattr(memory, "free_memory", lambda device: 5 * wide * 2)  # room for two layers and a half
    asked: list[bool] = []
    ask = Keeper.keeps_whole

    def spy(self: Keeper, x: Tensor) -> bool:
        asked.append(ask(self, x))
        return asked[-1]

    monkeypatch.setattr(Keeper, "keeps_whole", spy)
    result = conserva.relevance(model, inputs, 1, rules="exact")
    assert result.plan == "recompute"
    assert asked[0]
    assert not asked[-1]
    torch.testing.assert_close(result.scores(), plain.scores(), rtol=1e-12, atol=1e-12)


def test_samples_explained_one_at_a_time_tell_the_leanest_plan() -> None:
    part = conserva.relevance(bert(), tokens(1), 1, checkpoint="whole")
    lean = conserva.relevance(bert(), tokens(1), 1, checkpoint="recompute")
    assert type(part).side_by_side([part, lean, part], 0).plan == "recompute"


# When memory runs out


class Hungry(nn.Module):
    """A model that runs out of memory some times, in the forward or in the backward pass."""

    def __init__(self, times: int, backward: bool) -> None:
        super().__init__()
        self.inner, self.times, self.backward = llama().double(), times, backward
        self.made: list[weakref.ref[Tensor]] = []
        self.alive: list[int] = []

    def forward(self, input_ids: Tensor) -> Tensor:
        self.alive.append(sum(one() is not None for one in self.made))
        logits: Tensor = self.inner(input_ids=input_ids).logits
        self.made.append(weakref.ref(logits))
        cycle: list[object] = [logits]
        cycle.append(cycle)  # as some models leave behind
        if self.times > 0:
            self.times -= 1
            if not self.backward:
                raise torch.OutOfMemoryError("made up")
            logits.register_hook(_run_out)
        return logits


def _run_out(grad: Tensor) -> None:
    raise torch.OutOfMemoryError("made up")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("times", "plan"), [(0, "whole"), (1, "recompute")])
def test_auto_tries_again_leaner_with_nothing_left_behind(times: int, plan: str, backward: bool) -> None:
    model, ids = Hungry(times, backward).eval(), tokens()["input_ids"]
    result = conserva.relevance(model, ids, 1)
    assert result.plan == plan
    assert model.alive == [0] * (times + 1)
    plain = conserva.relevance(Hungry(0, backward).eval(), ids, 1, checkpoint="whole")
    torch.testing.assert_close(result.scores(), plain.scores(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("auto", "plans tried: auto, recompute"), ("whole", "checkpoint='auto'"),
        ("recompute", "plans tried: recompute"), ("offload", "fewer or shorter inputs at a time."),
    ],
)  # fmt: skip
def test_when_no_plan_fits_the_error_says_what_to_do(given: str, says: str) -> None:
    model = Hungry(9, backward=True).eval()
    with pytest.raises(conserva.Error, match=says) as raised:
        conserva.relevance(model, tokens()["input_ids"], 1, checkpoint=given)
    assert f"checkpoint={given!r}" in str(raised.value)
    assert raised.value.__context__ is None  # which would hold all that was kept
    assert len(model.alive) == len(memory.plans(given, CPU))


class Mlp(nn.Module):
    """Attention and an MLP that does something a plan may trip over."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.words, self.how = nn.Embedding(50, 6), how
        self.up, self.down, self.out = nn.Linear(6, 12), nn.Linear(12, 6), nn.Linear(6, 3)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        if self.how == "in place":
            x += self.mlp(x)
        elif self.how == "checkpointed":
            for _ in range(3):
                x = x + checkpoint(self.mlp, x, use_reentrant=False)
        return self.out(x.mean(1))


@pytest.mark.parametrize("how", ["in place", "checkpointed"])
@pytest.mark.parametrize("plan", PLANS)
def test_models_that_a_plan_trips_over_are_explained_without(
    how: str, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, ids = Mlp(how).double().eval(), torch.randint(0, 50, (2, 5))
    with monkeypatch.context() as patch:
        patch.setattr(memory, "LARGE", math.inf)
        plain = conserva.relevance(model, ids, 1, rules="exact")
    monkeypatch.setattr(memory, "free_memory", lambda device: 3000)
    result = conserva.relevance(model, ids, 1, rules="exact", checkpoint=plan)
    torch.testing.assert_close(result.scores(), plain.scores(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(result.ledger.biases, plain.ledger.biases, rtol=1e-12, atol=1e-12)


def test_a_keeper_that_changes_its_mind_within_a_checkpoint_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, ids = Mlp("checkpointed").double().eval(), torch.randint(0, 50, (2, 5))
    plain = conserva.relevance(model, ids, 1, rules="ah+ln", checkpoint="whole")
    answers = iter([True] * 3)  # whole in the forward pass, made anew when the checkpoints run again
    monkeypatch.setattr(Keeper, "keeps_whole", lambda self, x: next(answers, False))
    result = conserva.relevance(model, ids, 1, rules="ah+ln")
    assert next(answers, None) is None
    torch.testing.assert_close(result.scores(), plain.scores(), rtol=1e-12, atol=1e-12)


def test_other_errors_are_not_taken_for_the_plans() -> None:
    runs: list[Plan | None] = []

    def run(plan: Plan | None) -> None:
        runs.append(plan)
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        memory.within_memory("auto", CPU, run)
    assert len(runs) == 1


def test_a_host_that_runs_out_of_memory_tries_the_next_plan_too() -> None:
    plans: list[object] = []

    def run(plan: Plan | None) -> str:
        plans.append(plan)
        if len(plans) == 1:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")
        return "done"

    assert memory.within_memory("auto", CPU, run) == "done"
    assert plans == list(memory.plans("auto", CPU))
    with pytest.raises(conserva.Error, match="does not fit into the memory of cpu"):
        memory.within_memory("whole", CPU, lambda plan: (_ for _ in ()).throw(MemoryError()))


def test_a_gate_and_its_own_transpose_are_two_tensors() -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.inner, self.out = nn.Embedding(20, 8), nn.Linear(8, 6, bias=False), nn.Linear(6, 2)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            h = self.inner(x + F.scaled_dot_product_attention(x, x, x))
            return self.out((F.silu(h) * h.mT).sum(1))

    model, ids = Square().double().eval(), torch.randint(0, 20, (2, 6))
    for rules in ("ah+ln", "exact"):
        plain = explained(model, ids, 1, "plain", rules=rules)
        for plan in ("whole", "recompute"):
            assert_same(explained(model, ids, 1, plan, rules=rules), plain)
