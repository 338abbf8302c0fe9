"""What a model is at the moment: the same as long as nothing is changed, another after any change that may matter."""

from __future__ import annotations

import copy
import enum
import functools
import logging
import re
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tiny
from conserva import kept, state
from conserva.state import DEEPEST, FEW, LARGEST_ARRAY, LONGEST, State, serial_number
from test_recording import Tape, record_by


class Slotted:
    """An object without a dict, of whose end one does not hear."""

    __slots__ = ("scale",)

    def __init__(self, scale: float) -> None:
        self.scale = scale


class Names(list[int]):
    """A list of one's own."""


class Wraps(Tensor):
    """A tensor that wraps others, and lies nowhere."""

    @staticmethod
    def __new__(cls, numbers: Tensor) -> Wraps:
        return Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=numbers.dtype)  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


class Turned:
    """An object with a method that looks at what it holds."""

    def __init__(self, by: float) -> None:
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return self.by * x


def turned(options: dict[str, float]) -> Callable[[Tensor], Tensor]:
    """Return a function that looks at what it was made of."""
    return lambda x: options["by"] * x


def defaulting() -> Any:
    """Return a function with defaults that may change."""

    def made(x: Any, y: Any = [1], *, z: Any = [1]) -> Any:  # noqa: B006
        return x, y, z

    return made


def model() -> Any:
    """Return a model whose modules hold all sorts of things."""
    made: Any = tiny.bert()
    bert = made.bert
    bert.scaling, bert.nested, bert.args = {"default": 1.0}, [[1]], SimpleNamespace(scale=1.0, deep={"of": [1]})
    bert.kind, bert.table, bert.act, bert.power = torch.float32, torch.ones(3), torch.relu, np.float64(1.0)
    bert.register_parameter("free", None)
    bert.square = nn.Parameter(torch.randn(3, 3))
    bert.counts, bert.names, bert.last, bert.slotted = defaultdict(int, a=1), Names([1]), deque([1]), Slotted(1.0)
    bert.array, bert.partial, bert.one, bert.wrapped = (
        np.ones(3),
        functools.partial(max, 1),
        {"a": 1},
        Wraps(torch.ones(2)),
    )
    bert.other = {}
    bert.method = MethodType(lambda own: 1, bert)
    bert.hidden, bert.brackets, bert.long = [nn.Linear(2, 2)], [[1, (2,)]], torch.ones(FEW + 1)
    bert.encoder.layer.append(bert.encoder.layer[0])
    bert.closure, bert.bound, bert.arguments = (
        turned({"by": 1.0}),
        Turned(1.0).forward,
        functools.partial(max, [1], k=[1]),
    )
    bert.defaults = defaulting()
    bert.labels, bert.deep = {i: str(i) for i in range(LONGEST + 1)}, {"a": {"b": {"c": {"d": {"e": 1}}}}}
    bert.own = type("Own", (nn.Linear,), {"by": 1.0, "forward": lambda own, x: x, "scale": property(len)})(2, 2)
    return made


def _move_entry(made: Any) -> None:
    made.bert.other["a"] = made.bert.one.pop("a")


def _rename_weight(made: Any) -> None:
    made.bert.renamed = made.bert._parameters.pop("square")


def _change_places(made: Any) -> None:
    made.bert.free, made.bert.square = made.bert.square, None


CHANGES: dict[str, Callable[[Any], object]] = {
    "a switch": lambda made: setattr(made.bert.encoder.layer[1].attention.self, "is_decoder", True),
    "a hook": lambda made: made.bert.register_forward_hook(lambda *_: None),
    "the configuration": lambda made: setattr(made.config, "chunk_size_feed_forward", 7),
    "labels": lambda made: made.config.id2label.update({0: "b", 1: "a"}),
    "a dict": lambda made: made.bert.scaling.update(default=3.0),
    "a nested list": lambda made: made.bert.nested[0].append(2),
    "an object's": lambda made: setattr(made.bert.args, "scale", 3.0),
    "a list deep inside an object": lambda made: made.bert.args.deep["of"].append(2),
    "a type": lambda made: setattr(made.bert, "kind", torch.bfloat16),
    "the type of a number": lambda made: setattr(made.bert, "scaling", {"default": 1}),
    "a tensor that is no buffer": lambda made: setattr(made.bert, "table", torch.ones(3)),
    "a function": lambda made: setattr(made.bert, "act", torch.tanh),
    "the forward of one module": lambda made: setattr(made.bert, "forward", lambda **given: None),
    "a weight turned in place": lambda made: setattr(made.bert.square, "data", made.bert.square.data.t()),
    "training": lambda made: made.bert.train(),
    "a buffer": lambda made: setattr(made.bert.embeddings, "position_ids", made.bert.embeddings.position_ids.clone()),
    "a module of another class": lambda made: setattr(made.bert, "__class__", type("Other", (type(made.bert),), {})),
    "a number of numpy's": lambda made: setattr(made.bert, "power", np.float64(2.0)),
    "a layer that is used again": lambda made: made.bert.encoder.layer.append(made.bert.encoder.layer[0]),
    "which layer is used again": lambda made: setattr(made.bert.encoder.layer, "2", made.bert.encoder.layer[1]),
    "a module of another name": lambda made: setattr(made, "head", made._modules.pop("classifier")),
    "brackets": lambda made: setattr(made.bert, "brackets", [[1], (2,)]),
    "a long tensor of the host, filled anew": lambda made: made.bert.long.fill_(2),
    "an entry in another dict": _move_entry,
    "a weight of another name": _rename_weight,
    "a weight in a place that was free": _change_places,
    "a dict with defaults": lambda made: made.bert.counts.update(a=2),
    "a list of one's own": lambda made: made.bert.names.append(2),
    "a queue": lambda made: made.bert.last.append(2),
    "an object without a dict": lambda made: setattr(made.bert.slotted, "scale", 2.0),
    "an array": lambda made: made.bert.array.fill(2),
    "a tensor of the host, filled anew": lambda made: made.bert.table.fill_(2),
    "a tensor that wraps others": lambda made: setattr(made.bert, "wrapped", Wraps(torch.ones(2))),
    "a function with arguments": lambda made: setattr(made.bert, "partial", functools.partial(max, 1)),
    "a method": lambda made: setattr(made.bert, "method", MethodType(lambda own: 2, made.bert)),
    "a weight of a module in a list": lambda made: setattr(
        made.bert.hidden[0], "weight", nn.Parameter(torch.ones(2, 2))
    ),
    "what a function was made of": lambda made: made.bert.closure.__closure__[0].cell_contents.update(by=2.0),
    "an object behind a method": lambda made: setattr(made.bert.bound.__self__, "by", 2.0),
    "an argument of a function": lambda made: made.bert.arguments.args[0].append(2),
    "an argument by name": lambda made: made.bert.arguments.keywords["k"].append(2),
    "a default": lambda made: made.bert.defaults.__defaults__[0].append(2),
    "a default by name": lambda made: made.bert.defaults.__kwdefaults__["z"].append(2),
    "one of many labels": lambda made: made.bert.labels.update({7: "eight"}),
    "the type of one of many labels": lambda made: made.bert.labels.update({7: 7}),
    "what lies deep": lambda made: made.bert.deep["a"]["b"]["c"]["d"].update(e=2),
    "the forward of a class": lambda made: setattr(type(made.bert.own), "forward", lambda own, x: 2 * x),
    "a property of a class": lambda made: setattr(type(made.bert.own), "scale", property(lambda own: 2.0)),
    "what a class holds": lambda made: setattr(type(made.bert.own), "by", 2.0),
    "a hook on a module in a list": lambda made: made.bert.hidden[0].register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_was_changed_is_another(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record_by(Tape, monkeypatch)
    made = model()
    before = kept.recorded(made)
    assert before is not None
    assert kept.recorded(made) == before
    CHANGES[change](made)
    assert kept.recorded(made) != before


def test_functions_that_come_and_go_are_never_taken_for_each_other() -> None:
    made: Any = nn.Linear(2, 2)
    met = set()
    for i in range(50):
        made.act = functools.partial(pow, i)  # which may lie where the last one lay
        met.add(tuple(State(made).settings))
    assert len(met) == 50
    assert len({serial_number(object()) for _ in range(50)}) == 50


def test_a_number_that_belonged_to_another_is_not_taken_over() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    state._serials[id(one)] = (weakref.ref(other), -1)
    assert serial_number(one) != -1


def test_what_is_gone_is_forgotten() -> None:
    before = len(state._serials)
    for _ in range(50):
        serial_number(SimpleNamespace)
        serial_number(lambda: None)
    assert len(state._serials) <= before + 1


def test_a_large_array_is_another_every_time() -> None:
    made: Any = nn.Linear(2, 2)
    made.array = np.zeros(LARGEST_ARRAY, dtype=np.uint8)
    assert State(made).settings == State(made).settings
    made.array = np.zeros(LARGEST_ARRAY + 1, dtype=np.uint8)
    assert State(made).settings != State(made).settings


def test_objects_that_hold_each_other_come_to_an_end() -> None:
    made: Any = nn.Linear(2, 2)
    made.first, made.second = SimpleNamespace(), SimpleNamespace()
    made.first.other, made.second.other, made.itself = made.second, made.first, made
    assert State(made).settings == State(made).settings
    made.circle = []
    made.circle.append(made.circle)
    assert State(made).settings == State(made).settings


def is_the_same_again(held: Any) -> bool:
    """Return whether a model that holds something is what it was, as long as nothing is changed."""
    made: Any = nn.Linear(2, 2)
    made.held = held
    return State(made).settings == State(made).settings


def nested(depth: int) -> Any:
    """Return objects in objects; the last holds no plain value."""
    made = SimpleNamespace(inner=torch.ones(3))
    for _ in range(depth):
        made = SimpleNamespace(inner=made)
    return made


def end_of(made: Any, depth: int) -> Any:
    for _ in range(depth):
        made = made.inner
    return made


@pytest.mark.parametrize("depth", [DEEPEST - 1, DEEPEST + 1])
def test_of_what_lies_deeper_only_which_object_it_is(depth: int) -> None:
    made: Any = nn.Linear(2, 2)
    made.held = nested(depth)
    before = State(made).settings
    assert State(made).settings == before
    end_of(made.held, depth).inner = torch.ones(3)
    assert (State(made).settings == before) == (depth > DEEPEST)
    before, made.near = State(made).settings, end_of(made.held, 2)
    found = State(made).settings
    assert found != before
    end_of(made.held, depth).inner = torch.ones(3)
    assert State(made).settings != found  # from there it is near enough


@pytest.mark.parametrize("count", [LONGEST, LONGEST + 1])
def test_of_long_lists_only_which_objects_they_hold(count: int) -> None:
    made: Any = nn.Linear(2, 2)
    made.held = [[i] for i in range(count)]
    before = State(made).settings
    assert State(made).settings == before
    made.held[7].append(2)
    assert (State(made).settings == before) == (count > LONGEST)
    before, made.held[7] = State(made).settings, [[8], [9]]
    assert State(made).settings != before


def test_an_object_that_is_heard_of_is_what_it_is() -> None:
    made: Any = nn.Linear(2, 2)
    there: Any = nn.Linear(2, 2)
    made.held = [weakref.ref(there)]
    before = State(made).settings
    assert State(made).settings == before
    del there
    assert State(made).settings != before


class Colour(enum.Enum):
    """One of several."""

    RED = enum.auto()


class Object:
    """Something to hold."""


def unfinished() -> Any:
    """Return a function that looks for a name which is not there yet."""

    def found() -> Any:
        return later

    return found
    later = 1


@pytest.mark.parametrize(
    "held",
    [
        np,
        torch.nn.functional,
        logging.getLogger("a.b"),
        Object,
        len,
        threading.Lock(),
        re.compile("a"),
        unfinished(),
        torch.ops.aten.gelu,
        Colour.RED,
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_models_hold_is_the_same_again(held: Any) -> None:
    assert is_the_same_again(held)


def test_a_twin_has_weights_of_its_own() -> None:
    made = tiny.bert()
    assert State(made).weights != State(copy.deepcopy(made)).weights
