"""What a server of processes imports once, so that commands forked from it start at once."""

import contextlib
import importlib
import os

os.environ["OMP_NUM_THREADS"] = "1"

import matplotlib.figure  # noqa: F401
import pyarrow.parquet  # noqa: F401
import torch
import transformers

USED = (
    "cli.commands",
    "explaining.explain",
    "auditing.run",
    "evaluation.run",
    "evaluation.store",
    "bias_study.run",
    "paper.training.run",
    "paper.experiments.run",
    "paper.experiments.texts",
    "views.terminal",
    "views.explanation_page",
    "views.explanation_figure",
)
"""Modules of the package that commands import when they need them."""

torch.set_num_threads(1)
for name in USED:
    importlib.import_module(f"conserva.{name}")
with contextlib.suppress(Exception):  # transformers imports its parts when they are first asked for
    transformers.AutoModelForSequenceClassification, transformers.AutoTokenizer  # noqa: B018
    from conserva.tasks.loading import load

    load()
