"""Many calls one after the other leave nothing behind, and many at the same time do not meet."""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import tracemalloc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import conserva
from attacking import rng_of, times
from model_state import changed, copies, numbers, state_of
from subjects import Subject, kept, questions, subject
from tiny import Classifier, bert, llama, shake, tokens

WARM_UP = 30


def _hooks(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _held(model: nn.Module) -> dict[str, int]:
    """Return how much there is of what a leak is made of."""
    gc.collect()
    objects = gc.get_objects()
    return {
        "tensors": sum(isinstance(one, Tensor) for one in objects),
        "objects": len(objects),
        "hooks": _hooks(model),
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "bytes of Python": tracemalloc.get_traced_memory()[0],
        "bytes of all": _resident(),
    }


ALLOWED = {"objects": 100, "bytes of Python": 64_000, "bytes of all": 32_000_000}
"""What may be more afterwards, however many calls there were: caches of fixed size, and how memory is laid out."""

REPEATED = [
    ("bert sdpa", "relevance at embeddings"),
    ("llama", "relevance exact"),
    ("keeps", "relevance attnlrp"),
    ("keeps", "audit"),
    ("text", "explain ig:steps=3"),
    ("text", "explain chefer"),
    ("encoder", "verify"),
    ("bert", "replaying"),
]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="the system does not tell what a process holds")
@pytest.mark.parametrize(("name", "question"), REPEATED)
def test_many_calls_hold_no_more_than_one(name: str, question: str) -> None:
    one, ask = subject(name), questions(name)[question]
    gc.collect()
    gc.freeze()
    tracemalloc.start()
    try:
        for _ in range(WARM_UP):
            ask(one)
        before = _held(one.model)
        for _ in range(times(60 // len(REPEATED) + 1)):
            ask(one)
        after = _held(one.model)
    finally:
        tracemalloc.stop()
        gc.unfreeze()
        gc.freeze()  # the libraries, as before
    grown = {key: after[key] - before[key] for key in before if after[key] - before[key] > ALLOWED.get(key, 0)}
    assert not grown, f"{question} of {name} left behind {grown}"


def _with_a_forward_of_its_own(model: nn.Module) -> nn.Module:
    model.forward = functools.partial(model.forward)  # type: ignore[method-assign]
    return model


def _with_a_method_of_its_own(model: nn.Module) -> nn.Module:
    whole = model.forward

    def forward(self: nn.Module, ids: Tensor) -> Tensor:
        return whole(ids)

    model.forward = types.MethodType(forward, model)  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("change", [lambda model: model, _with_a_forward_of_its_own, _with_a_method_of_its_own])
def test_a_model_that_was_explained_is_not_held(change: Callable[[nn.Module], nn.Module]) -> None:
    model = change(shake(Classifier()))
    conserva.relevance(model, tokens(2)["input_ids"] % 50, 1, rules="exact")
    conserva.audit(model, tokens(2)["input_ids"] % 50, 1)
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None


def test_a_tensor_that_a_model_keeps_holds_nothing_of_an_explanation() -> None:
    """Of all tensors there are, none tells of an explanation, and what is kept holds no more than its own graph."""
    model = kept()
    inputs = torch.tensor([[3, 4, 5, 6]])
    for rules in ("exact", "attnlrp", "ah+ln", "gi"):
        conserva.relevance(model, inputs, 1, rules=rules)
    conserva.audit(model, inputs, 1)
    found = [one for one in gc.get_objects() if isinstance(one, Tensor)]
    assert [sorted(vars(one)) for one in found if any(key.startswith("conserva") for key in vars(one))] == []
    assert {type(one).__module__ for one in found if type(one).__module__.startswith("conserva")} == set()


@pytest.fixture
def _often() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def _at_once(jobs: list[Callable[[], Any]]) -> list[Any]:
    """Run jobs at the same time, each in a thread, and return what they return or raise."""
    found: list[Any] = [None] * len(jobs)
    start = threading.Barrier(len(jobs))

    def run(i: int) -> None:
        start.wait()
        try:
            found[i] = jobs[i]()
        except BaseException as error:
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


MODELS: dict[str, Callable[[], nn.Module]] = {"bert": bert, "llama": llama, "encoder": lambda: shake(Classifier())}
WAYS: list[dict[str, Any]] = [
    {"rules": "exact"},
    {"rules": "ah+ln"},
    {"rules": "gi"},
    {"rules": "attnlrp"},
    {"rules": "exact", "at": "embeddings"},
    {"rules": "ah+ln", "at": ["inputs", "embeddings"]},
    {"rules": "ah", "at": ["inputs", "*"]},
    {"rules": "ln", "checkpoint": "recompute"},
    {"rules": "exact", "ledger": False},
]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("_often")
def test_explanations_at_the_same_time_are_those_alone(name: str) -> None:
    rng, model = rng_of(f"threads {name}"), MODELS[name]()
    before, worked = state_of(model), copies(model)
    cases = []
    for seed in range(32):
        how = rng.choice([one for one in WAYS if name != "encoder" or "embeddings" not in one.get("at", "")])
        given = tokens(rng.choice([1, 2]), rng.randint(3, 8), seed)
        inputs: Any = given["input_ids"] % 50 if name == "encoder" else given
        cases.append((how, inputs))

    def job(how: dict[str, Any], inputs: Any) -> Callable[[], Any]:
        return lambda: [numbers(conserva.relevance(model, inputs, 1, **how)) for _ in range(times(2))]

    alone = [job(*one)() for one in cases]
    found = _at_once([job(*one) for one in cases])
    for (how, _), ours, theirs in zip(cases, found, alone, strict=True):
        assert ours == theirs, f"{how}: {ours if isinstance(ours, BaseException) else 'other numbers'}"
    assert changed(before, state_of(model)) == {}
    assert copies(model) == worked == dict.fromkeys(worked, True)


@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.usefixtures("_often")
def test_whoever_asks_the_model_itself_meanwhile_gets_all_hidden_states(name: str) -> None:
    """Transformers' own hooks are removed after an explanation, but not from under another thread's call."""
    model: Any = MODELS[name]()
    inputs = tokens(1, 5)
    explained = numbers(conserva.relevance(model, inputs, 1, at="embeddings"))
    right = numbers([x.detach() for x in model(**inputs, output_hidden_states=True).hidden_states])

    def theirs() -> Any:
        states = (model(**inputs, output_hidden_states=True).hidden_states for _ in range(times(12)))
        return [numbers([x.detach() for x in each]) for each in states]

    def ours() -> Any:
        return [numbers(conserva.relevance(model, inputs, 1, at="embeddings")) for _ in range(times(8))]

    model = MODELS[name]()  # without hooks again
    found = _at_once([theirs, ours, theirs, ours])
    assert found[0] == found[2] == [right] * times(12), "hidden states are missing"
    assert found[1] == found[3] == [explained] * times(8)
    # Theirs may have stayed, as without an explanation: once they are there, they are left alone.
    model(**inputs, output_hidden_states=True)
    before = state_of(model)
    conserva.relevance(model, inputs, 1, at="embeddings")
    assert changed(before, state_of(model)) == {}


def test_hooks_that_another_thread_is_installing_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import output_capturing

    model: Any = bert()
    inputs, install = tokens(1, 5), output_capturing.install_output_capuring_hook
    right = [x.shape for x in bert()(**inputs, output_hidden_states=True).hidden_states]
    has_begun, may_go_on = threading.Event(), threading.Event()

    def slowly(module: nn.Module, key: str, *given: Any) -> None:
        install(module, key, *given)
        if key == "hidden_states":
            has_begun.set()
            may_go_on.wait(0.5)

    monkeypatch.setattr(output_capturing, "install_output_capuring_hook", slowly)
    theirs = threading.Thread(target=lambda: model(**inputs, output_hidden_states=True))
    theirs.start()
    assert has_begun.wait(60)
    conserva.relevance(model, inputs, 1, at="embeddings")
    may_go_on.set()
    theirs.join()
    monkeypatch.undo()
    for _ in range(2):
        assert [x.shape for x in model(**inputs, output_hidden_states=True).hidden_states] == right
        conserva.relevance(model, inputs, 1, at="embeddings")


def test_hooks_that_were_there_before_stay() -> None:
    model: Any = bert()
    inputs = tokens(1, 5)
    model.bert(**inputs, output_hidden_states=True)  # a part of the model has been asked already
    before = state_of(model)
    first = numbers(conserva.relevance(model, inputs, 1, at="embeddings"))
    assert changed(before, state_of(model)) == {}
    assert first == numbers(conserva.relevance(bert(), inputs, 1, at="embeddings"))
    states = model(**inputs, output_hidden_states=True).hidden_states
    assert len(states) == 1 + model.config.num_hidden_layers


@pytest.mark.usefixtures("_often")
def test_an_error_in_one_thread_is_no_other_threads() -> None:
    model = bert()
    right = numbers(conserva.relevance(model, tokens(1, 5), 1, rules="exact"))

    def fine() -> Any:
        return [numbers(conserva.relevance(model, tokens(1, 5), 1, rules="exact")) for _ in range(times(3))]

    def wrong() -> Any:
        for _ in range(times(3)):
            with pytest.raises(conserva.Error, match="out of range"):
                conserva.relevance(model, tokens(1, 5), 7, rules="exact")

    found = _at_once([fine, wrong] * 4)
    assert found == [[right] * times(3), None] * 4


def test_subjects_are_what_they_are_said_to_be() -> None:
    """The model that keeps things has everything that the attacks look for."""
    one: Subject = subject("keeps")
    model: Any = one.model
    assert model.out.weight is model.words.weight
    assert not model.norm.weight.requires_grad
    assert model.words.weight.grad is not None
    assert _hooks(model) == 2
    assert nn.utils.parametrize.is_parametrized(model.down)
