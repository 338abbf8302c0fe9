"""Weights & Biases: what an offline run has written is what the results have."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb", reason="wandb is not installed")

import wandb

import conserva
from conserva.integrations.tracking import tracked
from conserva.integrations.wandb import log_to_wandb
from doc_pages import shown_and_printed, wrong_examples
from every_result import RESULTS
from made_up_explanations import explanation
from wandb_files import history

ONE = explanation(["[CLS]", "joy"], scores=(1 / 3, -1e-13))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs; nothing is sent anywhere."""
    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true", "ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Iterator[Any]:
    with wandb.init(project="tests", dir=str(folder)) as active:
        yield active


def written(run: Any) -> list[dict[str, Any]]:
    """Finish a run, and return its history."""
    run.finish()
    wandb.teardown()  # the process that writes the log ends
    return history(Path(run.dir).parent)


def content(run: Any, known: dict[str, Any]) -> bytes:
    """Return the content of a file that the history tells of."""
    return (Path(run.dir) / known["path"]).read_bytes()


def test_what_is_logged_is_read_back(run: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    results = [make() for make in RESULTS.values()]
    for i, result in enumerate(results):
        log_to_wandb(result, f"x{i}", run=run)
    rows = written(run)
    assert [row["_step"] for row in rows] == list(range(len(results)))
    for i, (result, row) in enumerate(zip(results, rows, strict=True)):
        parts = tracked(result)
        assert {name: row[f"x{i}/{name}"] for name in parts.metrics} == parts.metrics
        assert content(run, row[f"x{i}/page"]).decode() == parts.page
        table = json.loads(content(run, row[f"x{i}/table"]))
        assert table == {"columns": list(parts.table), "data": json.loads(json.dumps(parts.rows))}
        assert (f"x{i}/figure" in row) == (parts.figure is not None)
        if parts.figure:
            drawn, logged = (image.open(io.BytesIO(x)) for x in (parts.figure, content(run, row[f"x{i}/figure"])))
            assert drawn.tobytes() == logged.tobytes()


def test_the_active_run_is_the_default_and_names_are_kinds(run: Any) -> None:
    log_to_wandb(ONE, step=4)
    log_to_wandb(conserva.Explanations(()))
    assert run.summary["explanation/output"] == ONE.output
    (row,) = written(run)
    assert row["explanation/gap"] == ONE.ledger.gap
    assert row["_step"] == 4
    assert row["explanations/explanations"] == 0  # a step that was given goes on until the next


# What is refused.


def test_without_a_run(folder: Path) -> None:
    with pytest.raises(conserva.Error, match=r"no run of W&B is active: call wandb.init\(\)"):
        log_to_wandb(ONE)


def test_what_would_be_dropped_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run.log({"loss": 1.0}, step=7)
    monkeypatch.setattr(wandb.Table, "MAX_ARTIFACT_ROWS", 1)
    for given, settings, message in (
        (ONE, {"step": 7.5}, "give an integer"),
        (ONE, {"step": 3}, "step=3, but the run is at step 7"),
        (ONE, {}, "has 2 rows, and W&B keeps 1"),
        ("exact", {}, "result is of type str"),
        (ONE, {"name": ""}, "give a name"),
    ):
        with pytest.raises(conserva.Error, match=message):
            log_to_wandb(given, **settings)  # type: ignore[arg-type]
    assert len(written(run)) == 1


# The documentation.


def test_examples() -> None:
    assert wrong_examples(log_to_wandb) == ""


def test_the_page_shows_what_its_code_prints(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    shown, printed = shown_and_printed("wandb")
    assert printed == shown
