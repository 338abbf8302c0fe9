"""`conserva models`: the bundled models, and those in the cache of the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conserva.cli import main
from conserva.models.bundled import BUNDLED_MODELS, bundled_models
from conserva.tasks.cached import cached_models


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def add(cache: Path, name: str, config: Any, files: tuple[str, ...] = ("model.safetensors",), card: str = "") -> None:
    """Add a model to the cache, in the layout of the hub."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    content = config if isinstance(config, bytes) else json.dumps(config).encode()
    (snapshot / "config.json").write_bytes(content)
    for file in files:
        (snapshot / file).write_bytes(b"never read")
    if card:
        (snapshot / "README.md").write_text(card, encoding="utf-8")


BERT = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "bad", "1": "good"}}


def test_the_bundled_models_are_listed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    for model in bundled_models():
        [line] = [line for line in out.splitlines() if line.split()[:1] == [model.name]]
        assert model.licence == "Apache-2.0"
        assert model.licence in line
        assert model.labels[0] in line
        assert 0.1e6 < model.bytes < 10e6
    assert "cache" not in out
    assert main(["models", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == list(BUNDLED_MODELS)


def test_cached_models_with_a_task_are_listed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(cache, "org/reviews", BERT, card="---\nlicense: mit\n---\nlicense: other\n")
    add(cache, "gpt2", {"architectures": ["GPT2LMHeadModel"]})
    add(cache, "org/encoder", {"architectures": ["BertModel"]})  # a headless encoder: no task
    add(cache, "org/pickled", BERT, files=("pytorch_model.bin",))
    assert main(["models", "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out) if each["source"] == "cache"}
    assert list(found) == ["gpt2", "org/reviews"]
    assert found["gpt2"]["kind"] == "language model"
    assert (found["org/reviews"]["labels"], found["org/reviews"]["licence"]) == (["bad", "good"], "mit")
    assert main(["models"]) == 0
    assert "no licence stated; reads prompts" in capsys.readouterr().out


@pytest.mark.parametrize(
    "config",
    [b"", b"[]", b"{", b"\xff", b"[" * 100_000, {"architectures": 5}, {"architectures": [["x"]]}, {"id2label": "x"}],
)
def test_configurations_that_cannot_be_used_are_left_out(cache: Path, config: Any) -> None:
    add(cache, "org/odd", config)
    add(cache, "org/reviews", {**BERT, "id2label": {"0": "\x1b[2J"}})
    found = cached_models()
    assert "org/reviews" in [model.name for model in found]


def test_hostile_labels_are_escaped(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(cache, "org/odd", {**BERT, "id2label": {"0": "\x1b]0;owned\x07", "1": "\u202e"}})
    for arguments in (["models"], ["models", "--json"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "owned" in out
