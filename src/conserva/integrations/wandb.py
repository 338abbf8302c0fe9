"""Weights & Biases: results as media, tables and metrics of a run."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from .._util.extras import require
from ..errors import Error
from ..results.result import Result
from .tracking import Tracked, name_of, step_of, tracked

require("conserva.integrations.wandb", "wandb")

import wandb  # noqa: E402

__all__ = ["log_to_wandb"]


def log_to_wandb(result: Result, name: str | None = None, *, run: Any = None, step: int | None = None) -> None:
    """Log a result to a run of Weights & Biases: its page, its figure, its table and its metrics.

    They are logged in one call of `run.log`, as `name/page` (`wandb.Html`), `name/figure` (`wandb.Image`), `name/table`
    (`wandb.Table`), `name/output`, `name/gap` and so on; see docs/doors/wandb.md.

    Parameters
    ----------
    result
        An Explanation, Explanations, Comparison, Generation, Trace, Evaluation, Audit or BiasStudy.
    name
        The section of the workspace. None takes the kind of the result, such as "explanation".
    run
        The run, as `wandb.init` returns it. None takes the active run.
    step
        As in `run.log`. None takes the next step.

    Examples
    --------
    >>> import wandb
    >>> from conserva.integrations.wandb import log_to_wandb
    >>> one = conserva.explain(conserva.load(), "a joy.")
    >>> with wandb.init(mode="offline") as run:  # doctest: +SKIP
    ...     log_to_wandb(one, "joy", run=run)
    """
    parts, step = tracked(result), step_of(step)
    run = active() if run is None else run
    if step is not None and step < run.step:
        raise Error(f"step={step}, but the run is at step {run.step}, and W&B drops what is logged to earlier steps.")
    write(parts, name_of(result, name), run, step)


def active() -> Any:
    """Return the active run."""
    if wandb.run is None:
        raise Error("run=None, and no run of W&B is active: call wandb.init(), or give its run.")
    return wandb.run


def write(parts: Tracked, name: str, run: Any, step: int | None, beside: Mapping[str, float] | None = None) -> None:
    """Log the parts of a result to a run, and other numbers beside them under their own names."""
    data: dict[str, Any] = {f"{name}/page": wandb.Html(io.StringIO(parts.page), inject=False)}
    if parts.figure is not None:
        from PIL import Image  # it comes with matplotlib, which drew the figure

        data[f"{name}/figure"] = wandb.Image(Image.open(io.BytesIO(parts.figure)))
    if parts.table:
        rows = parts.rows
        if len(rows) > wandb.Table.MAX_ARTIFACT_ROWS:
            raise Error(
                f"The table of {name!r} has {len(rows):,} rows, and W&B keeps {wandb.Table.MAX_ARTIFACT_ROWS:,}: log "
                "a part of the result, or raise wandb.Table.MAX_ARTIFACT_ROWS."
            )
        data[f"{name}/table"] = wandb.Table(columns=list(parts.table), data=rows)
    data |= {f"{name}/{key}": value for key, value in parts.metrics.items()}
    run.log({**data, **(beside or {})}, step=step)
