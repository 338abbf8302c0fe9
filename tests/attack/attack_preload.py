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
    "explaining",
    "auditing.run",
    "faithfulness.run",
    "faithfulness.store",
    "bias_study.run",
    "training.run",
    "experiments.text",
    "views.terminal",
    "views.html",
    "views.figure",
)
"""Modules of the package that commands import when they need them."""

torch.set_num_threads(1)
for name in USED:
    importlib.import_module(f"conserva.{name}")
with contextlib.suppress(Exception):  # transformers imports its parts when they are first asked for
    transformers.AutoModelForSequenceClassification, transformers.AutoTokenizer  # noqa: B018
    from conserva.loading import load

    load()
