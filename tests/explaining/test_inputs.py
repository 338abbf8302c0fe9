"""One input, or several as any ordered collection: lists, tuples, arrays, Series, generators."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import conserva
import language
import tiny_heads
from tiny_images import noise, vit

TEXTS = ["a joy.", "not much of anything.", "it is what it is."]
PAIRS = [("a man eats.", "someone is eating."), ("dull", "a joy of a film."), ("a joy.", "dull")]


@cache
def bert() -> conserva.Text:
    network = tiny_heads.model("bert", "AutoModelForSequenceClassification", num_labels=3)
    return conserva.Text(network, tiny_heads.tokenizer(), "tiny")


SEVERAL_TEXTS: dict[str, Callable[[], Any]] = {
    "list": lambda: list(TEXTS),
    "array": lambda: np.array(TEXTS),
    "array of objects": lambda: np.array(TEXTS, dtype=object),
    "Series": lambda: pd.Series(TEXTS),
    "Series of strings with another index": lambda: pd.Series(TEXTS, index=[7, 3, 5], dtype="string"),
    "Series of categories": lambda: pd.Series(TEXTS, dtype="category"),
    "Index": lambda: pd.Index(TEXTS),
    "column of a table": lambda: pd.DataFrame({"text": TEXTS})["text"],
    "generator": lambda: (text for text in TEXTS),
    "map": lambda: map(str, TEXTS),
    "deque": lambda: deque(TEXTS),
    "values of a dictionary": lambda: dict(enumerate(TEXTS)).values(),
    "column of pyarrow": lambda: pytest.importorskip("pyarrow").array(TEXTS).to_pylist(),
}

SEVERAL_PAIRS: dict[str, Callable[[], Any]] = {
    "list of tuples": lambda: list(PAIRS),
    "tuple of tuples": lambda: tuple(PAIRS),
    "list of lists": lambda: [list(pair) for pair in PAIRS],
    "array of two columns": lambda: np.array(PAIRS),
    "zip": lambda: zip(*map(list, zip(*PAIRS, strict=True)), strict=True),
    "rows of a table": lambda: pd.DataFrame(PAIRS).to_numpy(),
    "dictionaries, as pipelines take": lambda: [{"text": a, "text_pair": b} for a, b in PAIRS],
    "Series of tuples": lambda: pd.Series(PAIRS),
}


@pytest.mark.parametrize("form", SEVERAL_TEXTS)
def test_several_texts_in_any_ordered_collection(form: str) -> None:
    many = conserva.explain(bert(), SEVERAL_TEXTS[form](), 1)
    assert isinstance(many, conserva.Explanations)
    assert many == conserva.explain(bert(), TEXTS, 1)
    assert all(type(one.text) is str for one in many)


@pytest.mark.parametrize("form", SEVERAL_PAIRS)
def test_several_pairs_in_any_ordered_collection(form: str) -> None:
    many = conserva.explain(bert(), SEVERAL_PAIRS[form](), 1)
    assert many == conserva.explain(bert(), PAIRS, 1)
    assert all(len(one.sections) == 2 for one in many)


def test_a_dictionary_is_one_pair() -> None:
    one = conserva.explain(bert(), {"text": PAIRS[0][0], "text_pair": PAIRS[0][1]}, 1)
    assert one == conserva.explain(bert(), PAIRS[0], 1)


@pytest.mark.parametrize("form", [tuple, iter, deque, pd.Series])
def test_inputs_of_other_tasks_may_come_as_any_collection_too(form: Callable[[Any], Iterable[Any]]) -> None:
    image = conserva.Image(vit())
    pictures = [noise(0, 32, 32), noise(1, 32, 32)]
    tasks_and_inputs: list[tuple[Any, list[Any]]] = [(image, pictures), (language.causal(), ["the capital", "of"])]
    for task, inputs in tasks_and_inputs:
        many = conserva.explain(task, form(inputs), 1)
        assert [one.scores for one in many] == [one.scores for one in conserva.explain(task, inputs, 1)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"a joy.", "dull"}, "is neither a single text that tiny accepts nor a list of them"),
        ({"text": "a joy."}, "is neither a single text"),
        ({"premise": "a", "hypothesis": "b"}, "is neither a single text"),
        (b"a joy.", "is neither a single text"),
        (3, "inputs=3 is neither a single text that tiny accepts nor a list of them"),
        (None, "inputs=None is neither"),
        (pd.DataFrame({"text": TEXTS}), "give one of its columns, or the rows of two as"),
        (["a joy.", None], r"inputs\[1\]=None is not a string"),
        (pd.Series(["a joy.", float("nan")]), r"inputs\[1\]=nan is not a string"),
        (np.array(["a", "b", "c", "d", "e", "f"]).reshape(2, 3), "is not a string: tiny takes texts"),
        ([["a", "b", "c"]], "takes a text, or a pair of texts"),
        (("a", "b", "c"), "takes a text, or a pair of texts"),
        ((text for text in ["a joy.", ""]), "is empty"),
        (torch.zeros(2), "is not a string: tiny takes texts"),
    ],
)
def test_other_inputs_are_refused(given: Any, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.explain(bert(), given)


@pytest.mark.parametrize("none", [[], (), pd.Series([], dtype=object), iter(())])
def test_no_input_has_no_explanation(none: Any) -> None:
    if isinstance(none, tuple):
        with pytest.raises(conserva.Error, match="takes a text, or a pair of texts"):
            conserva.explain(bert(), none)
    else:
        assert len(conserva.explain(bert(), none)) == 0


@pytest.mark.parametrize(
    "target",
    [np.array([0, 1, 2]), torch.tensor([0, 1, 2]), pd.Series([0, 1, 2]), [np.int64(0), torch.tensor(1), 2]],
)
def test_targets_may_come_as_a_collection_too(target: Any) -> None:
    many = conserva.explain(bert(), TEXTS, target)
    assert [one.target for one in many] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    with pytest.raises(conserva.Error, match="target is a list of 3 for 2 text"):
        conserva.explain(bert(), TEXTS[:2], target)


@pytest.mark.parametrize("call", [conserva.compare, conserva.trace])
@pytest.mark.parametrize("given", [TEXTS, np.array(TEXTS), iter(TEXTS), pd.Series(TEXTS), tuple(PAIRS)])
def test_functions_of_one_input_refuse_several(call: Callable[..., Any], given: Any) -> None:
    with pytest.raises(conserva.Error, match=r"is not a single text that tiny accepts|is a generator: "):
        call(bert(), given)


def test_functions_of_one_input_take_a_pair_as_a_dictionary() -> None:
    given = {"text": PAIRS[0][0], "text_pair": PAIRS[0][1]}
    assert conserva.compare(bert(), given, 1, methods=["gi"])[0].sections
    assert conserva.trace(bert(), given, 1).sections
    assert conserva.audit(bert(), given, 1).samples == 1
    assert conserva.audit(bert(), np.array(PAIRS), 1).samples == 3
