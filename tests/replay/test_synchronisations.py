"""Reading a number back stops a device's queue, so it is done once: at the end of an explanation."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import conserva
from conserva.engine import checks
from tiny import bert, llama, tokens

MODELS = {"bert": bert, "llama": llama}
over_models = pytest.mark.parametrize("model", MODELS)
over_rules = pytest.mark.parametrize("rules", ["gi", "ah+ln", "exact"])

_READING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
}


class Reads(TorchDispatchMode):
    """Counts how often numbers are read back, as they would be from a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.paused = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # Numbers in float64 are the library's own, on the host: what an activation is at 0.
        if func in _READING and args[0].dtype != torch.float64:
            self.add()
        return func(*args, **(kwargs or {}))

    def add(self) -> None:
        self.count += not self.paused


@contextmanager
def reads() -> Iterator[Reads]:
    """Count also what no dispatch shows: lists, arrays, and copies to the host."""
    counted = Reads()

    def counting(method: Callable) -> Callable:
        def read(x: Tensor, *args, **kwargs):
            counted.add()
            return method(x, *args, **kwargs)

        return read

    with pytest.MonkeyPatch.context() as patch, counted:
        for name in ("tolist", "numpy", "cpu"):
            patch.setattr(Tensor, name, counting(getattr(Tensor, name)), raising=False)
        yield counted


def of_the_model(model: torch.nn.Module, inputs: dict[str, Tensor]) -> int:
    """How often a model itself reads something back."""
    with reads() as counted:
        model(**inputs)
    return counted.count


def test_what_is_read_back_is_counted() -> None:
    x = torch.ones(2)
    for read in (
        lambda: bool(x[0]),
        lambda: x[0].item(),
        lambda: float(x[0]),
        lambda: torch.equal(x, x),
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: x.numpy(),
    ):
        with reads() as counted:
            read()
        assert counted.count == 1


@over_models
@over_rules
@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("target", [1, None, [0, 1, 1], ["LABEL_0", 1, None], "1 - 0"])
def test_an_explanation_reads_back_once(model: str, rules: str, ledger: bool, target: object) -> None:
    built, inputs = MODELS[model](id2label={0: "LABEL_0", 1: "b"}, label2id={"LABEL_0": 0, "b": 1}), tokens()
    with reads() as counted:
        conserva.relevance(built, inputs, target, rules=rules, ledger=ledger)
    assert counted.count <= 1 + of_the_model(built, inputs)


def test_activations_that_are_not_zero_at_zero_read_nothing_back() -> None:
    model, inputs = bert(hidden_act="sigmoid"), tokens()
    with reads() as counted:
        found = conserva.relevance(model, inputs, 1, rules="exact")
    assert counted.count <= 1 + of_the_model(model, inputs)
    assert found.ledger is not None
    assert found.ledger.gap.abs().max() < 1e-4


@over_models
def test_several_targets_read_back_once(model: str) -> None:
    built, inputs = MODELS[model](), tokens()
    with reads() as counted:
        conserva.relevance(built, inputs, targets=[0, 1, [1, 0, 1]])
    assert counted.count <= 1 + of_the_model(built, inputs)


def test_ids_that_the_model_copied_are_not_compared() -> None:
    class Copying(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = bert()
            self.get_input_embeddings = self.inner.get_input_embeddings

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.inner(input_ids=input_ids.clone(), attention_mask=attention_mask).logits

    model, inputs = Copying(), tokens()
    with reads() as counted:
        found = conserva.relevance(model, inputs, 1)
    assert counted.count <= 1 + of_the_model(model, inputs)
    assert torch.equal(found.scores(), conserva.relevance(model.inner, inputs, 1).scores())


@pytest.mark.parametrize("method", ["gi", "ah+ln", "exact"])
def test_a_stream_of_batches_reads_back_only_what_is_done(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = conserva.load()
    texts = ["dull", "a joy.", "a dull joy", "not much of anything", "far too long for what it has to say"]
    conserva.explain(task, texts, method=method)  # what is read once for all, as the weights' fingerprint, is known now
    order: list[str] = []
    module = sys.modules["conserva.explaining.explained"]
    launched, finished, batched = [], module._explanations, task.batch

    def batch(encoded: list) -> dict[str, Tensor]:
        order.append("launch")
        launched.append(batched(encoded))
        return launched[-1]

    with reads() as counted:

        def explanations(*args: object) -> list:
            """What is done with numbers that are on the host already stops no device."""
            order.append("read")
            counted.paused = True
            found = list(finished(*args))
            counted.paused = False
            return found

        monkeypatch.setattr(module, "_explanations", explanations)
        monkeypatch.setattr(task, "batch", batch)
        conserva.explain(task, texts, method=method, batch_tokens=1)
    assert order == ["launch", *["launch", "read"] * 4, "read"]
    assert counted.count <= sum(of_the_model(task.model, inputs) for inputs in launched)


def test_checks_are_settled_together_and_the_first_one_speaks() -> None:
    said: list[str] = []

    def otherwise(name: str) -> Callable[[], Exception]:
        def make() -> Exception:
            said.append(name)
            return conserva.Error(name)

        return make

    def ask(asked: dict[str, bool], then: str = "") -> None:
        with checks.together():
            for name, passed in asked.items():
                checks.require(torch.tensor(passed), otherwise(name))
            assert not said
            if then:
                raise conserva.Error(then)

    with reads() as counted, pytest.raises(conserva.Error, match="second"):
        ask({"first": True, "second": False, "third": False})
    assert (said, counted.count) == (["second"], 1)
    said.clear()
    with pytest.raises(conserva.Error, match="later"):
        ask({"before": True}, "later")
    with pytest.raises(conserva.Error, match="before"):
        ask({"before": False}, "later")
    with pytest.raises(conserva.Error, match="alone"):
        checks.require(torch.tensor(False), otherwise("alone"))


def test_checks_inside_wait_for_those_who_collect_them() -> None:
    collected = checks.Checks()
    with collected, checks.together():
        checks.require(torch.tensor(False), lambda: conserva.Error("inside"))
    assert [bool(flag) for flag in collected.flags()] == [False]
    with pytest.raises(conserva.Error, match="inside"):
        collected.settle([0.0])
    collected.settle()  # only once


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_number_among_many_is_found(dtype: torch.dtype, bad: float) -> None:
    highest = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    for place in (0, 499, 999):
        x = torch.randn(1000).to(dtype)
        x[place] = bad
        assert checks.all_finite([highest, x, -highest, x[:0]]).tolist() == [True, False, True, True]
