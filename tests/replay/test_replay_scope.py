"""The contract of `conserva.replaying`: what may change inside its block, what is refused, and when it runs plain."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import conserva
import tiny
from conserva.replay import recordable
from conserva.replay.scope import Replaying
from loops import loop, same
from tapes import Recorders, Tape, record_by


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> Recorders:
    """Let tapes stand for CUDA graphs, so that models on a CPU have recordings."""
    return record_by(Tape, monkeypatch)


def test_the_signature_is_that_of_relevance() -> None:
    expected, found = (inspect.signature(one).parameters for one in (conserva.relevance, Replaying.relevance))
    assert list(found.values())[1:] == list(expected.values())[1:]


def _exchanged(model: Any) -> None:
    model.classifier.weight = nn.Parameter(3 * model.classifier.weight.detach())


def _moved(model: Any) -> None:
    model.bert.embeddings.position_ids = model.bert.embeddings.position_ids.clone()


@pytest.mark.parametrize("change", [_exchanged, _moved, lambda model: model.double()])
def test_weights_that_were_moved_or_exchanged_are_refused(change: Callable[[Any], Any], taped: Recorders) -> None:
    model = tiny.bert()
    with conserva.replaying(model) as fast:
        loop(fast, model, target=0)
        change(model)
        with pytest.raises(conserva.Error, match="moved or replaced"):
            fast.relevance(tiny.tokens(), 0)
    with conserva.replaying(model) as fast:
        same(fast.relevance(tiny.tokens(), 0), conserva.relevance(model, tiny.tokens(), 0))


def _global_hook() -> Any:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    return contextlib.closing(SimpleNamespace(close=handle.remove))


@contextlib.contextmanager
def _autocast() -> Iterator[None]:
    torch.set_autocast_enabled("cuda", True)  # as torch.autocast does where there is a GPU
    yield
    torch.set_autocast_enabled("cuda", False)


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


OBSERVING: dict[str, Callable[[], Any]] = {
    "autocast": _autocast,
    "global hook": _global_hook,
    "function mode": FunctionMode,
    "dispatch mode": DispatchMode,
    "saved tensors": lambda: saved_tensors_hooks(lambda x: x, lambda x: x),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
}


@pytest.mark.parametrize("observing", OBSERVING)
def test_under_modes_and_global_hooks_calls_run_plain(observing: str, taped: Recorders) -> None:
    model = tiny.bert()
    with conserva.replaying(model) as fast:
        loop(fast, model, target=0)
        ran = len(taped.ran)
        with OBSERVING[observing]():
            fast.relevance(tiny.tokens(), 0)
        assert len(taped.ran) == ran
        loop(fast, model, target=0)
        assert all(taped.ran[ran:])


@pytest.mark.parametrize("hook", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_with_hooks_on_the_model_calls_run_plain(hook: str, taped: Recorders) -> None:
    model, seen = tiny.bert(), []
    with conserva.replaying(model) as fast:
        loop(fast, model, target=0)
        ran = len(taped.ran)
        handle = getattr(model.bert.encoder.layer[0].attention, f"register_{hook}")(lambda *_: seen.append(1))
        with contextlib.suppress(conserva.Error):  # some hooks are refused in words: a replay would not notice them
            fast.relevance(tiny.tokens(), 0)
        assert len(taped.ran) == ran
        handle.remove()
        loop(fast, model, target=0)
        assert all(taped.ran[ran:])


def test_in_training_mode_calls_run_plain(taped: Recorders) -> None:
    model = tiny.bert()
    with conserva.replaying(model) as fast:
        loop(fast, model, target=0)
        replays = Tape.replays
        model.bert.encoder.train()
        with pytest.raises(conserva.Error, match=r"call model\.eval\(\) first"):  # a replay would not notice
            fast.relevance(tiny.tokens(), 0)
    assert Tape.replays == replays


def test_hooks_that_collect_hidden_states_are_a_part_of_the_model() -> None:
    model = tiny.bert()
    model(**tiny.tokens(), output_hidden_states=True)
    assert not recordable.is_observed(list(model.modules()))


def test_a_default_device_is_not_an_observer() -> None:
    with torch.device("cpu"):
        assert not recordable.is_observed(list(tiny.bert().modules()))


def test_nothing_is_recorded_inside_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordable, "is_recording", lambda: True)
    assert recordable.is_observed(list(tiny.bert().modules()))


@pytest.mark.parametrize(
    ("parts", "oldest", "expected"),
    [
        ([("cuda:1", torch.float32), ("cuda:1", torch.bfloat16)], "2.6", "cuda:1"),
        ([("cuda:1", torch.float32)], "99", None),
        ([("cuda:1", torch.float32), ("cuda:0", torch.float32)], "2.6", None),
        ([("cuda:0", torch.float32), ("cuda:0", torch.float16)], "2.6", None),
        ([("cpu", torch.float32)], "2.6", None),
        ([], "2.6", None),
    ],
)
def test_recorded_are_models_on_one_gpu(
    parts: list[tuple[str, torch.dtype]], oldest: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordable, "OLDEST", oldest)
    tensors = [SimpleNamespace(device=torch.device(device), dtype=dtype) for device, dtype in parts]
    model: Any = SimpleNamespace(parameters=lambda: iter(tensors[:1]), buffers=lambda: iter(tensors[1:]))
    assert recordable.recordable_device(model) == (None if expected is None else torch.device(expected))


def test_without_a_gpu_calls_run_plain() -> None:
    model = tiny.bert()
    with conserva.replaying(model) as fast:
        loop(fast, model, target=0)
        assert fast._recorder is None


@pytest.mark.parametrize("is_recorded", [True, False])
def test_outside_of_its_block_it_refuses(is_recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_recorded:
        record_by(Tape, monkeypatch)
    model = tiny.bert()
    fast = conserva.replaying(model)
    with pytest.raises(conserva.Error, match="outside"):
        fast.relevance(tiny.tokens(), 0)
    with fast:
        loop(fast, model, target=0)
        with pytest.raises(conserva.Error, match="already open"), fast:
            pass
        fast.relevance(tiny.tokens(), 0)
    with pytest.raises(conserva.Error, match="outside"):
        fast.relevance(tiny.tokens(), 0)


def test_a_model_must_be_a_module() -> None:
    with pytest.raises(conserva.Error, match="model='bert'"):
        conserva.replaying("bert")  # type: ignore[arg-type]
