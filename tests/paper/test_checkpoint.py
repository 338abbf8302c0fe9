"""The state of a training: read as it was written, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import conserva
from conserva.paper.training.checkpoint import read_state, write_state

STATE = {
    "model": {"a.weight": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(3)},
    "optimizer": {
        "state": {0: {"step": torch.tensor(2.0), "half": torch.ones(2, dtype=torch.bfloat16)}},
        "betas": (0.9, 0.1),
    },
    "random": torch.get_rng_state(),
    "history": [{"loss": 0.1 + 0.2, "nothing": None, "is": True, "name": "κ\udc80"}, float("inf")],
    "empty": [{}, [], (), ""],
}


def refused(call: Callable[[], Any], *parts: str) -> None:
    with pytest.raises(conserva.Error) as error:
        call()
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert str(error.value).isprintable()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_state(tmp_path / "a.safetensors", STATE)
    assert same(read_state(tmp_path / "a.safetensors", torch.device("cpu")), STATE)


def test_a_state_that_was_changed_anywhere_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_state(path, STATE)
    content = path.read_bytes()
    for place in range(0, len(content), 41):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        refused(lambda: read_state(path, torch.device("cpu")), f"{path} is damaged", "delete it and start anew")
        path.write_bytes(content[:place])
        refused(lambda: read_state(path, torch.device("cpu")), f"{path} is damaged")


def test_a_state_of_torch_is_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    torch.save(STATE, path)
    refused(lambda: read_state(path, torch.device("cpu")), "is damaged")
