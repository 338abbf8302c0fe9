"""MLflow: results as artifacts and metrics of a run."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._util.extras import require
from .._util.text import to_json
from ..errors import Error
from ..results.result import Result
from .tracking import Tracked, name_of, step_of, tracked

require("conserva.integrations.mlflow", "mlflow", "pandas")

import mlflow  # noqa: E402
from mlflow.entities import Metric  # noqa: E402

__all__ = ["log_to_mlflow"]

AT_ONCE = 1000
"""The number of metrics that MLflow takes in one call."""


def log_to_mlflow(
    result: Result,
    name: str | None = None,
    *,
    run_id: str | None = None,
    client: mlflow.MlflowClient | None = None,
    step: int | None = None,
) -> None:
    """Log a result to a run of MLflow: its page, its figure, its table and its metrics.

    The artifacts are `name.html`, `name.png` and `name.json`, a table that `mlflow.load_table` reads; with a step,
    `name/step_12.html` and so on. They replace those that were logged by the same name and step before. The metrics are
    `name/output`, `name/gap` and so on; see docs/doors/mlflow.md.

    Parameters
    ----------
    result
        An Explanation, Explanations, Comparison, Generation, Trace, Evaluation, Audit or BiasStudy.
    name
        The name of the artifacts and metrics. None takes the kind of the result, such as "explanation".
    run_id
        The run. None takes the active run.
    client
        The client that logs. None takes one for the current tracking URI.
    step
        The step of the metrics, as in `mlflow.log_metric`.

    Examples
    --------
    >>> import mlflow
    >>> from conserva.integrations.mlflow import log_to_mlflow
    >>> one = conserva.explain(conserva.load(), "a joy.")
    >>> with mlflow.start_run():  # doctest: +SKIP
    ...     log_to_mlflow(one, "joy")
    """
    parts = tracked(result)
    write(parts, name_of(result, name), *active(client, run_id), step_of(step))


def active(client: Any = None, run_id: str | None = None) -> tuple[Any, str]:
    """Return the given client and run, or else a client for the tracking URI and the active run."""
    if run_id is None:
        run = mlflow.active_run()
        if run is None:
            raise Error("run_id=None, and no run of MLflow is active: call mlflow.start_run(), or give a run_id.")
        run_id = run.info.run_id
    return mlflow.MlflowClient() if client is None else client, run_id


def write(parts: Tracked, name: str, client: Any, run_id: str, step: int | None) -> None:
    """Log the parts of a result to a run."""
    metrics = _named({f"{name}/{key}": value for key, value in parts.metrics.items()})
    place = name if step is None else f"{name}/step_{step}"
    client.log_text(run_id, parts.page, f"{place}.html")
    if parts.figure is not None:
        with tempfile.TemporaryDirectory() as folder:
            *folders, file = f"{place}.png".split("/")
            (Path(folder) / file).write_bytes(parts.figure)
            client.log_artifact(run_id, str(Path(folder) / file), "/".join(folders) or None)
    if parts.table:
        # log_table makes the file known as a table, but appends to an earlier one and rounds to ten decimals.
        client.log_table(run_id, {column: [] for column in parts.table}, f"{place}.json")
        table = {"columns": list(parts.table), "data": parts.rows}
        client.log_text(run_id, to_json(table, indent=None), f"{place}.json")
    now = int(time.time() * 1000)
    logged = [Metric(key, value, now, step or 0) for key, value in metrics.items()]
    for first in range(0, len(logged), AT_ONCE):
        client.log_batch(run_id, metrics=logged[first : first + AT_ONCE])


def _named(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics with "_" for characters that MLflow does not allow in names, such as the "+" of "ah+ln"."""
    names = {name: re.sub(r"[^\w./ -]", "_", name) for name in metrics}
    if len(set(names.values())) < len(names):
        shared = sorted(name for name, new in names.items() if list(names.values()).count(new) > 1)
        raise Error(
            f"The metrics {', '.join(map(repr, shared))} would have the same name in MLflow, whose names have letters, "
            "digits and '_-./ ' only: log these results one by one, under different names."
        )
    return {names[name]: value for name, value in metrics.items()}
