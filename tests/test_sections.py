"""Features that come from several inputs: how they are told apart, merged, and left out."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from conserva import Explanation
from conserva.errors import NotApplicable
from conserva.loading import load
from conserva.tasks.task import Encoded

ONE = Explanation(
    features=("[CLS]", "tr", "##ans", "late", "<s>", "über", "##setzen"),
    scores=(0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    special=(True, False, False, False, True, False, False),
    words=(None, 0, 0, 1, None, 1, 1),
    text="translate",
    target="x",
    output=63.5,
    probability=None,
    ledger=None,
    method="exact",
    model="m",
    sections=(("source", 4), ("answer so far", 3)),
)


def test_words_are_merged_within_their_section() -> None:
    merged = ONE.merged()
    assert merged.features == ("[CLS]", "trans", "late", "<s>", "übersetzen")
    assert merged.scores == (0.5, 3.0, 4.0, 8.0, 48.0)
    assert merged.sections == (("source", 3), ("answer so far", 2))
    bordering = replace(ONE, words=(None, 0, 0, 1, 1, 1, 1))
    assert bordering.merged().sections == (("source", 3), ("answer so far", 1))


def test_what_is_left_out_is_no_longer_counted() -> None:
    assert ONE.visible().sections == (("source", 3), ("answer so far", 2))
    assert ONE.visible().merged().sections == (("source", 2), ("answer so far", 1))


def test_sections_are_stored() -> None:
    assert Explanation.from_json(ONE.to_json()) == ONE
    older = {key: value for key, value in json.loads(ONE.to_json()).items() if key != "sections"}
    assert Explanation.from_json(json.dumps(older)).sections == ()


def test_scores_of_several_inputs_stand_side_by_side() -> None:
    class Two(Encoded):
        @property
        def parts(self) -> tuple[int, ...]:
            return (2, 1)

    task = load()
    task.features = ("a_input_ids", "b_input_ids")  # type: ignore[misc]
    inputs = {"a_input_ids": torch.zeros(2, 4), "b_input_ids": torch.zeros(2, 3)}
    scores = {"a_input_ids": torch.arange(8.0).view(2, 4), "b_input_ids": torch.arange(10.0, 16.0).view(2, 3)}
    joined = task.joined(inputs, scores)
    own = task.own(Two("", ("x", "y", "z"), (False,) * 3, (0, 1, 2)), inputs)
    assert joined[1][torch.from_numpy(own)].tolist() == [4, 5, 13]
    assert np.array_equal(own, [0, 1, 4])
    with pytest.raises(NotApplicable, match="attends over other places"):
        task.joined(inputs, {"a_input_ids": scores["a_input_ids"]})
