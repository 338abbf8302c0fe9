"""A model is left as it was: after every public function, and after a fault or an interrupt at any moment inside."""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import conserva
from attacking import add_cases, rng_of, times
from model_state import changed, copies, numbers, state_of, state_of_process
from subjects import SENTENCE, SUBJECTS, Subject, questions, subject
from tiny import Classifier, shake
from tiny_heads import model as with_head
from tiny_heads import tokenizer

FAULTS: dict[str, Callable[[], BaseException]] = {
    "RuntimeError": lambda: RuntimeError("a fault"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "OutOfMemoryError": lambda: torch.OutOfMemoryError("out of memory"),
    "MemoryError": lambda: MemoryError("no memory"),
    "Exception": lambda: Exception("another fault"),
    "ValueError": lambda: ValueError("a value"),
}


@pytest.fixture(autouse=True, scope="module")
def _prepared() -> Iterator[None]:
    """Let what is loaded by now not be searched whenever memory is said to run out; and interrupts be heard."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore them
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.freeze()  # the libraries, as before
    signal.signal(signal.SIGINT, before)


class Refused(str):
    """Why something was not answered."""


def asked(ask: Callable[[Subject], Any], one: Subject) -> Any:
    """Return the numbers of an answer, or what was refused."""
    try:
        return numbers(ask(one))
    except conserva.Error as error:
        return Refused(str(error))


@contextmanager
def as_it_was(one: Subject, case: str) -> Iterator[None]:
    """Fail unless a model and the process are after the block as they were before it."""
    add_cases("untouched models")
    model, process = state_of(one.model, one.changing), state_of_process()
    yield
    found = {**changed(process, state_of_process()), **changed(model, state_of(one.model, one.changing))}
    assert not found, f"{case} changed {found}"


def drawn(rng: random.Random) -> tuple[str, str, Callable[[Subject], Any]]:
    """Return a subject and a question at random, every subject as often as every other."""
    name = rng.choice(list(SUBJECTS))
    asked_about = questions(name)
    question = rng.choice(list(asked_about))
    return name, question, asked_about[question]


def prepared(name: str, question: str, ask: Callable[[Subject], Any]) -> tuple[Subject, Any]:
    """Return a subject and the right answer: imports and caches are then where they stay."""
    one = subject(name)
    asked(ask, one)
    return one, asked(ask, one)


ALWAYS = [
    *((name, "relevance at embeddings") for name in ("sentiment", "bert sdpa", "llama", "t5", "vit", "gpt2 task")),
    *(("keeps", question) for question in ("relevance exact", "relevance attnlrp", "audit", "verify", "rules")),
    *(("text", question) for question in ("explain ah+ln:at=embeddings", "evaluate", "bias", "compare")),
    ("llama task", "generation"),
    ("t5 task", "generation"),
    ("image task", "explain rollout"),
    ("bert", "examine"),
    ("bert sdpa", "replaying"),
]


def _cases(what: str, count: int) -> list[tuple[int, str, str]]:
    found = []
    for number in range(times(count)):
        name, question, _ = drawn(rng_of(f"{what} {number}"))
        found.append((number, name, question))
    return found


@pytest.mark.parametrize(("name", "question"), ALWAYS)
def test_an_answer_leaves_nothing_behind(name: str, question: str) -> None:
    ask = questions(name)[question]
    one = subject(name)
    if not one.changing:
        before = copies(one.model)
    with as_it_was(one, f"{question} of {name}"):
        first = asked(ask, one)
    assert not isinstance(first, Refused), first
    assert asked(ask, one) == first
    if not one.changing:
        assert copies(one.model) == before
        assert before["pickle"]


@pytest.mark.parametrize(("number", "name", "question"), _cases("answers", 30))
def test_any_answer_leaves_nothing_behind(number: int, name: str, question: str) -> None:
    ask = questions(name)[question]
    one = subject(name)
    with as_it_was(one, f"{question} of {name}"):
        first = asked(ask, one)
    assert asked(ask, one) == first


class _Fault(TorchDispatchMode):
    """Counts the operations of torch, and raises at one of them."""

    def __init__(self, at: int | None = None, make: Callable[[], BaseException] = Exception) -> None:
        super().__init__()
        self.count, self._at, self._make = 0, at, make

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count == self._at:
            raise self._make()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("number", "name", "question"), _cases("faults", 35))
def test_a_fault_leaves_nothing_behind(number: int, name: str, question: str) -> None:
    rng = rng_of(f"faults {number} where")
    ask = questions(name)[question]
    one, right = prepared(name, question, ask)
    with _Fault() as counting, suppress(conserva.Error):
        ask(one)
    at, kind = rng.randint(1, max(1, counting.count)), rng.choice(list(FAULTS))
    case = f"{kind} at operation {at} of {counting.count} in {question} of {name}"
    with as_it_was(one, case):
        try:
            with _Fault(at, FAULTS[kind]):
                ask(one)
        except BaseException as error:
            _expect(error, case)
    assert asked(ask, one) == right, f"{case} changed the next answer"


def _expect(error: BaseException, case: str) -> None:
    """Raise unless an error is one that was injected, or the library's own."""
    known = (*(type(make()) for make in FAULTS.values()), conserva.Error)
    assert isinstance(error, known), f"{case} raised {error!r}"


class _Events:
    """Counts the calls and returns of Python's functions inside a block, and interrupts it at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.count, self._at = 0, at
        self.entering: list[int] = []
        """The events on the way into a block, or out of one: what comes then may leave it half done."""

    def __enter__(self) -> _Events:
        sys.setprofile(self._watch)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def _watch(self, frame: Any, event: str, argument: Any) -> None:
        self.count += 1
        if self._at is None:
            if frame.f_code.co_name in _BLOCKS or frame.f_code.co_filename == contextlib.__file__:
                self.entering.append(self.count)
        elif self.count == self._at:
            if _is_finalizing(frame):
                self._at += 1
                return
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)


def _is_finalizing(frame: Any) -> bool:
    """Tell whether a finalizer is at work, out of which Python lets no exception."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


_BLOCKS = (
    "__enter__", "__exit__", "hooked", "remove", "remove_all", "close", "restored", "_defer", "_release", "_restore",
)  # fmt: skip


@pytest.mark.parametrize(("number", "name", "question"), _cases("interrupts", 35))
def test_an_interrupt_between_any_two_instructions_leaves_nothing_behind(number: int, name: str, question: str) -> None:
    rng = rng_of(f"interrupts {number} where")
    ask = questions(name)[question]
    one, right = prepared(name, question, ask)
    if question == "rules":
        pytest.skip("inside a context of the user's own, torch alone decides")
    with _Events() as counted, suppress(conserva.Error):
        ask(one)
    at = rng.choice(counted.entering) if rng.random() < 0.7 else rng.randint(1, counted.count)
    case, events = f"an interrupt at event {at} of {counted.count} in {question} of {name}", _Events(at)
    with as_it_was(one, case):
        try:
            with events:
                ask(one)
            assert events.count < at, f"{case} was lost"
        except (KeyboardInterrupt, conserva.Error):
            pass
    assert asked(ask, one) == right, f"{case} changed the next answer"


def _expired(number: int, frame: Any) -> None:
    raise TimeoutError("the time is up")


@pytest.mark.parametrize(("number", "name", "question"), _cases("timers", 10))
def test_a_timer_leaves_nothing_behind(number: int, name: str, question: str) -> None:
    rng = rng_of(f"timers {number} when")
    ask = questions(name)[question]
    if question == "rules":
        pytest.skip("inside a context of the user's own, torch alone decides")
    one, right = prepared(name, question, ask)
    start = time.perf_counter()
    asked(ask, one)
    delay = rng.uniform(0.0, 1.0) * (time.perf_counter() - start) + 1e-5
    before = signal.signal(signal.SIGALRM, _expired)
    try:
        with as_it_was(one, case := f"a timer of {delay:.6f} s in {question} of {name}"):
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                asked(ask, one)
            except TimeoutError:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert asked(ask, one) == right, f"{case} changed the next answer"


IN_TRAINING: dict[str, Callable[[Any], Any]] = {
    "AutoModelForSequenceClassification": lambda model: conserva.Text(model, tokenizer()),
    "AutoModelForTokenClassification": lambda model: conserva.Tokens(model, tokenizer()),
    "AutoModelForQuestionAnswering": lambda model: conserva.Question(model, tokenizer()),
    "AutoModelForMaskedLM": lambda model: conserva.Blanks(model, tokenizer()),
    "AutoModel": lambda model: conserva.Similarity(model, tokenizer()),
}


@pytest.mark.parametrize("part", ["", "encoder.layer.0"])
@pytest.mark.parametrize("head", IN_TRAINING)
def test_a_model_in_training_is_refused_and_stays_in_training(head: str, part: str) -> None:
    model = with_head("bert", head)
    name = ".".join(filter(None, ("" if head == "AutoModel" else "bert", part))) if part else ""
    model.get_submodule(name).train()
    before = state_of(model)
    what = f"Module '{name}'" if name else "The model"
    with pytest.raises(conserva.Error, match=f"{what} is in training mode, .* call model.eval\\(\\) first"):
        IN_TRAINING[head](model)
    assert changed(before, state_of(model)) == {}
    assert not any(module.training for module in IN_TRAINING[head](model.eval()).model.modules())


@pytest.mark.parametrize("name", ["gpt2 task", "t5 task", "image task"])
def test_other_models_in_training_are_refused_too(name: str) -> None:
    task: Any = copy.deepcopy(subject(name).task)
    others = () if name == "image task" else (task.tokenizer,)
    with pytest.raises(conserva.Error, match="training mode"):
        type(task)(task.network.train(), *others)
    assert task.network.training


@pytest.mark.parametrize("method", conserva.methods())
def test_no_method_answers_at_random_for_a_model_that_went_back_to_training(method: str) -> None:
    model = with_head("bert", "AutoModelForSequenceClassification", hidden_dropout_prob=0.1)
    task = conserva.Text(model, tokenizer())
    model.train()
    with pytest.raises(conserva.Error, match=r"model.eval\(\)"):
        conserva.explain(task, SENTENCE, method=method)


class _Interrupting(nn.Module):
    """Layers of which one is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.ran = 0
        self.model = shake(Classifier())
        self.handles = [layer.register_forward_pre_hook(self._interrupt) for layer in self.model.encoder.layers]

    def _interrupt(self, *given: Any) -> None:
        self.ran += 1
        signal.raise_signal(signal.SIGINT)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids)


def test_an_interrupt_is_handled_at_the_next_call_of_torch() -> None:
    model = _Interrupting().eval()
    with pytest.raises(KeyboardInterrupt):
        conserva.relevance(model, torch.tensor([[3, 4, 5]]), 1)
    assert model.ran == 1


@pytest.mark.parametrize("handled", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_handler_of_ones_own_is_called_once_and_need_not_raise(handled: signal.Signals) -> None:
    model, heard = shake(Classifier()), []
    before = signal.signal(handled, lambda number, frame: heard.append(number))
    try:
        hook = model.encoder.layers[0].register_forward_pre_hook(lambda *_: signal.raise_signal(handled))
        found = conserva.relevance(model, torch.tensor([[3, 4, 5]]), 1)
        hook.remove()
        assert numbers(found) == numbers(conserva.relevance(model, torch.tensor([[3, 4, 5]]), 1))
    finally:
        signal.signal(handled, before)
    assert heard == [handled]


def test_a_long_search_is_interrupted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = []

    def search(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        reached.append(True)

    monkeypatch.setattr(sys.modules["conserva.attribution.attention"], "attention_flows", search)
    one = subject("text")
    with as_it_was(one, "an interrupted search"), pytest.raises(KeyboardInterrupt):
        conserva.explain(one.task, one.given, method="a-flow")
    assert reached == []


@pytest.mark.parametrize("wrong", [False, True])
def test_two_interrupts_leave_nothing_behind_either(wrong: bool) -> None:
    one = subject("encoder")
    ask = questions("encoder")["relevance exact"]
    right = asked(ask, one)

    def interrupt(*given: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        if wrong:
            raise ValueError

    with as_it_was(one, "two interrupts"):
        hook = one.model.encoder.layers[1].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask(one)
        hook.remove()
    assert asked(ask, one) == right
