"""Attack: the seed of Python's hashes, which decides the order of sets, must not decide any output."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attack_runs import make_data, results
from attacking import rng_of

SCRIPT = """
import contextlib, io, json, os, sys
import matplotlib, torch
matplotlib.use("agg")
torch.set_num_threads(1)
from conserva.cli import main
os.makedirs(sys.argv[1])
os.chdir(sys.argv[1])
found = {}
for arguments in json.loads(sys.argv[2]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    found[" ".join(arguments)] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(found))
"""


def commands(data: Path) -> list[list[str]]:
    """Return commands of every kind; those with --out write files, which are compared too."""
    bias = ["bias", "--data", f"{data}/x.txt", "--groups", f"{data}/groups", "--count", "120"]
    evaluate = ["evaluate", "--data", f"{data}/x.csv", "--count", "8", "--steps", "3", "--random-seeds", "2"]
    text = "a joy from start to end, and not a bore."
    return [
        [*bias, "--swaps", "4", "--batch-tokens", "100", "--json"],
        [*bias, "--swaps", "2", "--out", "bias"],
        [*evaluate, "--methods", "gi,random,ah+ln,exact", "--json"],
        [*evaluate, "--methods", "gi,random", "--out", "evaluation"],
        ["audit", "--json"],
        ["audit", "--html", "audit.html"],
        ["doctor", "--json"],
        ["explain", text, "--json"],
        ["explain", text, "--words", "--html", "page.html", "--png", "picture.png"],
        ["explain", text, "--trace", "--json"],
        ["explain", "--smiles", "CCO", "--json"],
        ["compare", text, "--json"],
        ["methods", "--json"],
        ["explain", text, "--target", "nonsense"],
        ["explain", text, "--method", "nonsense"],
        ["train", "nonsense", "--out", "nothing"],
        [*bias, "--target", "nonsense"],
    ]


def test_outputs_are_the_same_under_every_seed(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    data = tmp_path / "data"
    data.mkdir()
    make_data(data)
    seeds = ["0", str(rng_of("hash seeds").randrange(2, 2**32))]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path / seed / "folder"), json.dumps(commands(data))],
            env={**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for seed in seeds
    ]
    ends = [one.communicate() for one in running]
    assert [one.returncode for one in running] == [0, 0], ends
    found = [json.loads(out) for out, _ in ends]
    written = [results(tmp_path / seed / "folder") for seed in seeds]
    for one, files in zip(found, written, strict=True):
        one.update({name: hashlib.sha256(content).hexdigest() for name, content in files.items()})
    assert [code for code, *_ in list(found[0].values())[:17]] == [0] * 13 + [1] * 4, found[0]
    assert len(written[0]) > 10
    for seed, one in zip(seeds[1:], found[1:], strict=True):
        changed = [name for name in one if one[name] != found[0][name]]
        assert not changed, f"other under PYTHONHASHSEED={seed} than under 0: {changed}"
        assert list(one) == list(found[0])
