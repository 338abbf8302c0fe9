"""MLflow: what is read back from its store is what the results have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow", reason="mlflow is not installed")
pytest.importorskip("sqlalchemy", reason="sqlalchemy, for MLflow's store, is not installed")
pytest.importorskip("alembic", reason="alembic, for MLflow's store, is not installed")

import mlflow

import conserva
from conserva.integrations import mlflow as door
from conserva.integrations.mlflow import log_to_mlflow
from conserva.integrations.tracking import tracked
from doc_pages import shown_and_printed, wrong_examples
from every_result import RESULTS
from made_up_explanations import explanation

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:mlflow", "ignore::DeprecationWarning")

ONE = explanation(["[CLS]", "joy"], scores=(1 / 3, -1e-13))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store in a file, with its artifacts beside it."""
    folder = tmp_path_factory.mktemp("mlflow")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("tests", (folder / "artifacts").as_uri()))
    yield folder
    mlflow.set_tracking_uri(before)


@pytest.fixture
def run(store: Path) -> Iterator[str]:
    with mlflow.start_run() as active:
        yield active.info.run_id


def artifact(run: str, path: str) -> Any:
    where = Path(mlflow.MlflowClient().download_artifacts(run, path))
    return json.loads(where.read_text(encoding="utf-8")) if where.suffix == ".json" else where.read_bytes()


def files(run: str, folder: str | None = None) -> set[str]:
    found = mlflow.MlflowClient().list_artifacts(run, folder)
    return {each.path for each in found if not each.is_dir}.union(
        *(files(run, each.path) for each in found if each.is_dir)
    )


@pytest.mark.parametrize("name", RESULTS)
def test_what_is_logged_is_read_back(name: str, run: str) -> None:
    result = RESULTS[name]()
    parts = tracked(result)
    log_to_mlflow(result, "x")
    assert artifact(run, "x.html").decode() == parts.page
    assert artifact(run, "x.json") == {"columns": list(parts.table), "data": json.loads(json.dumps(parts.rows))}
    assert files(run) == {"x.html", "x.json"} | ({"x.png"} if parts.figure else set())
    if parts.figure:
        assert artifact(run, "x.png") == parts.figure
    metrics = mlflow.get_run(run).data.metrics
    assert sorted(metrics.values()) == sorted(parts.metrics.values())
    assert len(metrics) == len(parts.metrics)


def test_metrics_have_the_values_of_the_result(run: str) -> None:
    log_to_mlflow(ONE)
    metrics = mlflow.get_run(run).data.metrics
    assert metrics["explanation/output"] == ONE.output
    assert metrics["explanation/gap"] == ONE.ledger.gap
    assert metrics["explanation/gap_share"] == ONE.ledger.gap_share


def test_tables_are_exact_and_known_as_tables(run: str) -> None:
    log_to_mlflow(ONE)
    assert [row[1] for row in artifact(run, "explanation.json")["data"]] == list(ONE.scores)
    table = mlflow.load_table("explanation.json", run_ids=[run])
    assert table["feature"].tolist() == list(ONE.features)
    assert table["score"].tolist() == pytest.approx(ONE.scores)


def test_a_name_that_is_logged_again_is_replaced(run: str) -> None:
    log_to_mlflow(ONE, "x")
    log_to_mlflow(explanation(["joy"], scores=(0.5,)), "x")
    assert [row[:2] for row in artifact(run, "x.json")["data"]] == [["joy", 0.5]]
    assert len(mlflow.load_table("x.json", run_ids=[run])) == 1


def test_steps_have_files_of_their_own(run: str) -> None:
    for step in (0, 5):
        log_to_mlflow(explanation(["joy"], output=1.5 + step), "deep/x", step=step)
    assert files(run) == {f"deep/x/step_{step}.{kind}" for step in (0, 5) for kind in ("html", "png", "json")}
    history = mlflow.MlflowClient().get_metric_history(run, "deep/x/output")
    assert [(each.step, each.value) for each in history] == [(0, 1.5), (5, 6.5)]


def test_names_of_methods_are_made_valid(run: str) -> None:
    log_to_mlflow(conserva.Comparison((ONE, explanation(["[CLS]", "joy"], method="ah+ln"))), "x")
    assert {name.split("/")[1] for name in mlflow.get_run(run).data.metrics} == {"exact", "ah_ln"}


def test_a_run_and_a_client_can_be_given(store: Path) -> None:
    client = mlflow.MlflowClient()
    run = client.create_run(mlflow.get_experiment_by_name("tests").experiment_id).info.run_id
    log_to_mlflow(ONE, run_id=run)
    log_to_mlflow(ONE, "x", run_id=run, client=client)
    assert {"explanation.html", "x.html"} < files(run)
    assert mlflow.active_run() is None


def test_many_metrics_are_logged_in_parts(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "AT_ONCE", 3)
    log_to_mlflow(ONE)
    assert len(mlflow.get_run(run).data.metrics) == 7


# What is refused.


def test_without_a_run(store: Path) -> None:
    with pytest.raises(
        conserva.Error, match=r"no run of MLflow is active: call mlflow.start_run\(\), or give a run_id"
    ):
        log_to_mlflow(ONE)


def test_nothing_is_logged_of_what_is_refused(run: str) -> None:
    ambiguous = conserva.Comparison(tuple(explanation(["joy"], method=method) for method in ("a+b", "a_b")))
    for given, name, message in (
        (3, "x", "result is of type int"),
        (ONE, "", "give a name"),
        (ONE, "../x", "give a name"),
        (ambiguous, "x", "'x/a_b/output'.* would have the same name in MLflow"),
    ):
        with pytest.raises(conserva.Error, match=message):
            log_to_mlflow(given, name)  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match="give an integer"):
        log_to_mlflow(ONE, step=1.5)  # type: ignore[arg-type]
    assert files(run) == set()
    assert mlflow.get_run(run).data.metrics == {}


# The documentation.


def test_examples() -> None:
    assert wrong_examples(log_to_mlflow) == ""


def test_the_page_shows_what_its_code_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    try:
        shown, printed = shown_and_printed("mlflow")
    finally:
        mlflow.set_tracking_uri(before)
    assert printed == shown
