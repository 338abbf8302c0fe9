"""What recordings take for granted about a model: whoever changes it gets another, whoever watches it gets none."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nested import nested_tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import conserva
import tiny
from conserva import kept
from conserva.hooks import hooked
from conserva.recording import AFTER, Recorder
from test_recording import Idle, Tape, record_by

pytestmark = pytest.mark.usefixtures("alone")


def _global_hook() -> Any:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    return contextlib.closing(SimpleNamespace(close=handle.remove))


@contextlib.contextmanager
def _autocast() -> Iterator[None]:
    torch.set_autocast_enabled("cuda", True)  # as torch.autocast does where there is a GPU
    yield
    torch.set_autocast_enabled("cuda", False)


@contextlib.contextmanager
def _precision() -> Iterator[None]:
    torch.backends.cudnn.conv.fp32_precision, before = "ieee", torch.backends.cudnn.conv.fp32_precision
    yield
    torch.backends.cudnn.conv.fp32_precision = before


@pytest.mark.parametrize(
    "switch",
    [
        lambda: sdpa_kernel(SDPBackend.MATH),
        torch.inference_mode,
        _precision,
        lambda: torch.device("meta"),
    ],
    ids=["sdpa", "inference", "precision", "default device"],
)
def test_so_is_one_under_other_switches(switch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    before = kept.recorded(model)
    with switch():
        assert kept.recorded(model) != before
    assert kept.recorded(model) == before


def test_hooks_of_a_pass_in_another_thread_are_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    before, met = kept.recorded(model), []
    with hooked(after=[(model.bert, lambda *_: None)]):
        other = threading.Thread(target=lambda: met.append(kept.recorded(model)))
        other.start()
        other.join()
    assert met == [before]


class Watch(TorchFunctionMode):
    """A mode of the user's, which sees every call."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Deeper(TorchDispatchMode):
    """One that sees every kernel."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "watching",
    [
        _autocast,
        _global_hook,
        Watch,
        Deeper,
        lambda: saved_tensors_hooks(lambda x: x, lambda x: x),
        lambda: torch.autograd.set_detect_anomaly(True),
    ],
    ids=["autocast", "hook of all", "function mode", "dispatch mode", "saved tensors", "anomalies"],
)
def test_a_model_that_is_watched_runs_as_always(watching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    before = kept.recorded(model)
    with watching():
        assert kept.recorded(model) is None
    assert before is not None
    assert kept.recorded(model) == before


@pytest.mark.parametrize("hook", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_so_does_one_with_hooks(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    handle = getattr(model.bert.encoder, f"register_{hook}")(lambda *_: None)
    assert kept.recorded(model) is None
    handle.remove()
    assert kept.recorded(model) is not None


def test_a_hook_sees_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model, seen = tiny.bert(), []
    for seed in range(AFTER + 4):
        conserva.relevance(model, tiny.tokens(seed=seed), 0)
    model.bert.encoder.register_forward_hook(lambda *_: seen.append(1))
    for seed in range(AFTER + 4):
        before = len(seen)
        conserva.relevance(model, tiny.tokens(seed=seed), 0)
        assert len(seen) > before


def test_hidden_states_are_asked_for_by_hooks_that_are_no_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    model(**tiny.tokens(), output_hidden_states=True)
    assert kept.recorded(model) is not None


def test_a_recording_makes_no_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    monkeypatch.setattr(kept, "is_recording", lambda: True)
    assert kept.recorded(tiny.bert()) is None


def test_a_model_that_changes_with_every_call_is_given_up() -> None:
    recorder = Recorder(torch.device("cpu"), record=Tape, room=Idle)
    one = kept.Kept(0, (), recorder)
    numbers = [one.number((i,), ()) for i in range(3 * kept.MOST_STATES)]
    assert len(set(numbers)) == len(numbers)
    assert len(one._states) == len(one._places) <= kept.MOST_STATES
    for i in range(AFTER + 4):
        assert not recorder.run(None, {"x": torch.full((3,), float(i))}, lambda inputs: [inputs["x"]])[1]


SWITCHES: dict[str, tuple[Any, Any, Any]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "order of kernels": (torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order, [2, 1, 0, 3, 4]),
    "half sums": (
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp,
        True,
    ),
    **{
        name: (partial(getattr, holder, name), partial(setattr, holder, name), value)
        for holder, name, value in (
            (torch.backends.cudnn, "allow_tf32", False),
            (torch.backends.cudnn, "deterministic", True),
            (torch.backends.cudnn, "benchmark", True),
            (torch.backends.cudnn, "enabled", False),
            (torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
            (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
            (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
        )
    },
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_so_is_one_under_switches_that_are_set(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model, (read, write, value) = tiny.bert(), SWITCHES[switch]
    before, was = kept.recorded(model), read()
    write(value)
    try:
        assert kept.recorded(model) not in (before, None)
    finally:
        write(was)
    assert kept.recorded(model) == before


@pytest.mark.parametrize("switch", ["backends", "backends.cuda.matmul", "backends.cudnn.conv", "backends.cudnn.rnn"])
def test_torch_may_be_told_of_precision_in_its_new_way(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model, holder = tiny.bert(), attrgetter(switch)(torch)
    was = holder.fp32_precision
    before = kept.recorded(model)
    holder.fp32_precision = "ieee"
    try:
        assert kept.recorded(model) not in (before, None)
        conserva.relevance(model, tiny.tokens(), 0)
    finally:
        holder.fp32_precision = was
    assert kept.recorded(model) == before


def test_a_default_device_is_no_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    with torch.device("cpu"):
        assert kept.recorded(model) is not None


def test_how_much_rounding_passes_is_that_of_the_coarsest_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    model.bert.encoder.to(torch.bfloat16)
    place = kept.recorded(model)
    assert place is not None
    assert place.recorder._rounding == kept.ROUNDING[torch.bfloat16]


def test_a_model_on_a_cpu_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_switches", lambda: pytest.fail("looked at"))
    assert kept.recorded(tiny.bert()) is None


def test_a_hook_of_no_module_is_a_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model, found = tiny.bert(), {}
    exec("def hook(*given): pass", {"__name__": None}, found)
    model.bert.register_forward_hook(found["hook"])
    assert kept.recorded(model) is None


def test_a_model_that_left_the_device_has_no_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    assert kept.recorded(model) is not None
    monkeypatch.setattr(kept, "_may_be_recorded", lambda model: False)
    assert kept.recorded(model) is None
    assert model not in kept._of_models


def test_a_model_that_was_given_up_is_not_looked_at_until_its_weights_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    place = kept.recorded(model)
    assert place is not None
    place.recorder.drop()
    with monkeypatch.context() as patch:
        patch.setattr(kept, "State", lambda model: pytest.fail("looked at"))
        assert kept.recorded(model) is None
    assert kept.recorded(model.double()) is not None


def test_weights_that_come_back_to_where_they_were_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    first = next(model.parameters())
    before = kept.recorded(model)
    assert before is not None
    place, numbers = first.data_ptr(), first.detach().clone()
    memory = bytearray(first.nbytes)  # the same place, whoever lies there
    for _ in range(2):
        first.data = torch.frombuffer(memory, dtype=torch.float32).view_as(numbers).copy_(numbers)
        assert first.data_ptr() != place
        found = kept.recorded(model)
        assert found is not None
        assert found.recorder is not before.recorder
        before = found
        assert kept.recorded(model) == before


def test_settings_that_can_be_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Name(str):
        __hash__ = None  # type: ignore[assignment]

    record_by(Tape, monkeypatch)
    model = tiny.bert()
    model.bert.title = Name("x")
    assert kept.recorded(model) is None


class Odd(dict[str, int]):
    """Names that cannot be listed."""

    def keys(self) -> Any:
        raise KeyError("not now")


def dead() -> Any:
    """Return what stands for an object that is gone."""
    return weakref.proxy(Odd())


@pytest.mark.parametrize("make", [Odd, dead], ids=["names", "proxy"])
def test_a_model_that_cannot_be_looked_at_runs_as_always(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model = tiny.bert()
    vars(model.bert)["odd"] = make()
    assert kept.recorded(model) is None
    expected = conserva.relevance(model, tiny.tokens(), 0, replay=False)
    for _ in range(AFTER + 3):
        assert torch.equal(conserva.relevance(model, tiny.tokens(), 0).scores(), expected.scores())


@pytest.mark.parametrize(
    ("oldest", "is_cuda", "may_be"), [("2.6", True, True), ("2.6", False, False), ("99", True, False)]
)
def test_recorded_are_models_on_a_gpu_by_a_torch_that_refuses_what_it_cannot_replay(
    oldest: str, is_cuda: bool, may_be: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "OLDEST", oldest)
    model: Any = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(is_cuda=is_cuda)]))
    assert kept._may_be_recorded(model) == may_be


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
def test_what_is_sparse_or_nested_is_not_recorded(is_sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    model, ones = Edged().eval(), torch.ones(2, 2, dtype=torch.long)
    edges = ones.to_sparse() if is_sparse else nested_tensor([ones, ones])
    for seed in range(AFTER + 4):
        given = {"input_ids": tiny.tokens(batch=2, seed=seed)["input_ids"], "edges": edges}
        expected = conserva.relevance(model, given, 1, replay=False).scores("input_ids")
        assert torch.equal(conserva.relevance(model, given, 1).scores("input_ids"), expected)
    assert model not in kept._of_models
