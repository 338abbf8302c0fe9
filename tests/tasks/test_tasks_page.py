"""docs/tasks.md says what is true: its Python runs, with tiny models in the place of those that it names."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pictures

import conserva
import language
from conserva import tasks
from conserva.cli import main
from conserva.datasets.drawn import drawn_digit
from conserva.engine.rules import DEFAULT
from saved_models import SAVED

pytest.importorskip("sentence_transformers", reason="sentence_transformers is not installed")

from sentence_models import cross_encoder, sentence_encoder

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_every_line_of_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = {"SmolLM2-135M-Instruct.Q4_1.gguf": language.causal(), "digits": conserva.load("digits")}
    load, kinds = conserva.load, {"CrossEncoder": cross_encoder, "SentenceTransformer": sentence_encoder}
    made |= {"path/to/folder": load(), "user/model": load()}
    monkeypatch.setattr(conserva, "load", lambda given="sentiment", **how: made.get(str(given)) or load(given, **how))
    for kind, make in kinds.items():
        model = make(tmp_path / kind)
        monkeypatch.setattr(f"sentence_transformers.{kind}", lambda name, model=model: model)
        shutil.rmtree(tmp_path / kind)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "tasks.md", "exec"), names)
    assert {path.name for path in tmp_path.iterdir()} == {"paris.html", "picture.html"}
    assert abs(names["whole"].steps[0].ledger.gap) < 1e-5
    assert names["contrast"].target == " Paris -  London"


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(SAVED["Causal"](tmp_path / "model"))
    Pictures.fromarray(drawn_digit(3)).save("three.png")
    (tmp_path / "long.txt").write_text("a gorgeous, witty, seductive movie. " * 100, encoding="utf-8")
    commands = re.findall(r"^conserva ((?:explain|compare) [^#\n]*)", PAGE, re.MULTILINE)  # `evaluate` takes minutes
    assert len(commands) == 7
    for command in commands:
        words = [one or two for one, two in re.findall(r'"([^"]*)"|(\S+)', command)]
        words = [folder if word.endswith(".gguf") else word for word in words]
        if "--chat" in words:
            words.remove("--chat")  # the tiny tokenizer has no template
        assert main(words) == 0
    assert (tmp_path / "paris.html").exists()


def test_every_task_is_in_the_table() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(set(tasks.__all__) - {"Task"})
    assert all(hasattr(conserva, name) for name in listed)


def test_the_table_of_planted_facts_is_what_was_measured() -> None:
    record = json.loads((ROOT / "benchmarks" / "results" / "planted.json").read_text(encoding="utf-8"))
    answer, contrast = record["means"]["answer"], record["means"]["contrast"]

    def cell(found: list[float] | None) -> str:
        return "-" if found is None else "{:.2f} ({:.2f} to {:.2f})".format(*found)

    for name, one in answer.items():
        hits = [cell(one[scope]["hit"]) for scope in ("document", "prompt", "whole")]
        shares = [cell(one["document"]["positive"]), cell(contrast.get(name, {}).get("document", {}).get("positive"))]
        row = " | ".join([name, *hits, *shares, f"{one['sink'][0]:.2f}"])
        assert f"| {row} |" in PAGE
    assert f"and {record['count']} documents of {record['tokens']:,} tokens" in PAGE
    assert f"(of {record['tried']} documents)" in PAGE
    assert DEFAULT == "exact"


def test_the_table_of_methods_for_images_is_what_was_measured() -> None:
    record = json.loads((ROOT / "docs" / "results" / "digits.json").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}
    for mask in ("mean", "grey"):
        assert record[mask]["protocol"]["mask"] == mask
        assert record[mask]["provenance"]["weights"] == conserva.load("digits").fingerprint
        for one in record[mask]["methods"]:
            cells = ["{mean:.3f} [{low:.3f}, {high:.3f}]".format(**one["auac"])]
            cells += ["{mean:.2f} [{low:.2f}, {high:.2f}]".format(**one["au_mse"])]
            found.setdefault(one["method"], []).extend(cells)
    assert set(conserva.methods()) - {"gim", "exact+res", "attnlrp+res", "path"} <= set(found)  # not measured there
    for method, cells in found.items():
        assert f"| {method} | {' | '.join(cells)} |" in PAGE
