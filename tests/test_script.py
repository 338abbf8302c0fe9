"""What the functions of a script look at by global names: whoever changes that, gets another model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch

import conserva
import tiny
from conserva import kept
from conserva.script import SCRIPT, function_of, is_of_a_script
from conserva.state import State
from test_recording import Tape, record_by
from test_replays import OFTEN

pytestmark = pytest.mark.usefixtures("alone")
Change: TypeAlias = Callable[[dict[str, Any]], object]

SCRIPT_CLASS = """
class Settings:
    by = 1.0

    @staticmethod
    def gated(x):
        return gate * x

class Rounds(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x / digits

class Steps:
    def __init__(self):
        self.count = 1

    def more(self):
        return self.count + step

class Base(torch.nn.Linear):
    def forward(self, x):
        return x + shift

class Model(Base):
    def forward(self, x):
        return [self.helped(one) for one in super().forward(x)]

    def helped(self, x):
        return helper(Rounds.apply(x)) * Settings.by * Settings.gated(x) * self.scale * steps.more()

    @property
    def scale(self):
        return factor

    def predict(self, text):
        return tokenizer(text)

def helper(x, logits=None):
    return (lambda: by["by"])() * x.data

steps = Steps()
"""
NAMES: dict[str, Any] = {"gate": 1.0, "digits": 10, "shift": 0.0, "factor": 1.0, "step": 1}


def script(source: str = SCRIPT_CLASS) -> dict[str, Any]:
    """Return the global names of a script that was run."""
    names = {"__name__": SCRIPT, "torch": torch, "by": {"by": 1.0}, "data": object(), "tokenizer": object(), **NAMES}
    exec(source, names)
    return names


CHANGES: dict[str, Change] = {
    "a global name of a script": lambda names: names.update(by={"by": 2.0}),
    "what it stands for": lambda names: names["by"].update(by=2.0),
    "a class of a script": lambda names: setattr(names["Settings"], "by", 2.0),
    "what a static method looks at": lambda names: names.update(gate=2.0),
    "what a function with a gradient of its own looks at": lambda names: names.update(digits=100),
    "what a property looks at": lambda names: names.update(factor=2.0),
    "what the class beneath looks at": lambda names: names.update(shift=1.0),
    "what the class of an object looks at": lambda names: names.update(step=2),
    "a number of an object of a script": lambda names: setattr(names["steps"], "count", 2),
    "a number given to its class": lambda names: setattr(names["Steps"], "start", 2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_looks_at_something_else_is_another(change: str) -> None:
    names = script()
    made = names["Model"](2, 2)
    before = State(made).settings
    assert State(made).settings == before
    CHANGES[change](names)
    assert State(made).settings != before


UNUSED: dict[str, Change] = {
    "a global name like an attribute's": lambda names: names.update(data=2),
    "a global name like an argument's": lambda names: names.update(logits=2),
    "what another method looks at": lambda names: names.update(tokenizer=2),
}


@pytest.mark.parametrize("change", UNUSED)
def test_what_a_forward_does_not_look_at_is_no_change(change: str) -> None:
    names = script()
    made = names["Model"](2, 2)
    before = State(made).settings
    UNUSED[change](names)
    assert State(made).settings == before


def test_both_a_class_and_the_one_beneath_are_looked_at() -> None:
    names = script("""
class Base(torch.nn.Linear):
    def forward(self, x):
        return x + shift

class Model(Base):
    def forward(self, x):
        return x
""")
    made = torch.nn.ModuleList([names["Model"](2, 2), names["Base"](2, 2)])
    before = State(made).settings
    names["shift"] = 1.0
    assert State(made).settings != before


def test_the_global_names_of_a_module_are_not_looked_at() -> None:
    names = script(f"__name__ = 'module'\n{SCRIPT_CLASS}")
    made = names["Model"](2, 2)
    before = State(made).settings
    names["gate"] = 2.0
    assert State(made).settings == before


def test_which_function_an_entry_of_a_class_is() -> None:
    def plain(own: Any) -> None:
        pass

    for entry in (plain, staticmethod(plain), classmethod(plain), property(plain), functools.cached_property(plain)):
        assert function_of(entry) is plain
    assert function_of(property()) is None
    assert function_of(len) is None
    assert function_of(3) is None


def test_what_is_of_a_script() -> None:
    names = script()
    assert is_of_a_script(names["Model"])
    assert is_of_a_script(names["helper"])
    assert not is_of_a_script(torch.nn.Linear)
    assert not is_of_a_script(3)


STEERED = """
class Model(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids):
        return self.inner(input_ids=input_ids).logits * strength
"""


def test_a_number_of_a_notebook_that_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    names = script(STEERED)
    model = names["Model"](tiny.bert()).eval()
    outputs = []
    for names["strength"] in (1.0, 3.0):
        for seed in range(OFTEN):
            names["logits"] = torch.ones(seed)  # which no model looks at
            found = conserva.relevance(model, {"input_ids": tiny.tokens(seed=seed)["input_ids"]}, 1)
        outputs.append(float(found.output[0]))
    assert outputs[1] == pytest.approx(3 * outputs[0])
    assert len(kept._of_models[model].recorder._trusted) == 2
