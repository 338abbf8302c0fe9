"""What recordings take for granted about a model: whoever changes it gets another, whoever watches it gets none."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
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
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


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
        conserva.relevance(model, tiny.tokens(seed=seed), 0)
    assert len(seen) == AFTER + 4


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
    one = kept.Kept((), recorder)
    numbers = [one.number((i,)) for i in range(3 * kept.MOST_STATES)]
    assert len(set(numbers)) == len(numbers)
    assert len(one._states) <= kept.MOST_STATES
    for i in range(AFTER + 4):
        assert not recorder.run(None, {"x": torch.full((3,), float(i))}, lambda inputs: [inputs["x"]])[1]


SWITCHES: dict[str, tuple[Any, Any, Any]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "tf32": (
        lambda: torch.backends.cudnn.allow_tf32,
        lambda value: setattr(torch.backends.cudnn, "allow_tf32", value),
        False,
    ),
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


def test_settings_that_can_be_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Name(str):
        __hash__ = None  # type: ignore[assignment]

    record_by(Tape, monkeypatch)
    model = tiny.bert()
    model.bert.title = Name("x")
    assert kept.recorded(model) is None


@pytest.mark.parametrize(
    ("oldest", "is_cuda", "may_be"), [("2.6", True, True), ("2.6", False, False), ("99", True, False)]
)
def test_recorded_are_models_on_a_gpu_by_a_torch_that_refuses_what_it_cannot_replay(
    oldest: str, is_cuda: bool, may_be: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "OLDEST", oldest)
    model: Any = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(is_cuda=is_cuda)]))
    assert kept._may_be_recorded(model) == may_be
