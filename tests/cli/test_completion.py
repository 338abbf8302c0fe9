"""Completion in the shells that are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import conserva
from conserva.cli import main
from conserva.cli.commands import parser_of_all
from conserva.models.bundled import BUNDLED_MODELS

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script of a shell, in a folder with a few files."""
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    path = tmp_path / "_conserva"
    path.write_text(capsys.readouterr().out)
    for name in ("reviews one.csv", "reviews.txt"):
        (tmp_path / name).touch()
    return path


def completed(shell: str, script: Path, *words: str) -> set[str]:
    """Return what a shell suggests for the last of these words."""
    if shell == "bash":
        code = (
            f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _conserva; '
            'for each in "${COMPREPLY[@]}"; do echo "$each"; done'
        )
        command = ["bash", "--norc", "-c", code, "bash", "conserva", *words]
    else:
        line = " ".join(["conserva", *words])
        command = ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return {line.partition("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("script", SHELLS, indirect=True)
def test_the_script_is_valid(script: Path, request: pytest.FixtureRequest) -> None:
    shell = request.node.callspec.params["script"]
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", ["bash", "fish"], indirect=True)
def test_words_are_completed(script: Path, request: pytest.FixtureRequest) -> None:
    shell = request.node.callspec.params["script"]
    _, commands = parser_of_all()
    assert completed(shell, script, "") >= set(commands)
    assert completed(shell, script, "exp") == {"explain"}
    assert completed(shell, script, "explain", "--meth") == {"--method"}
    assert completed(shell, script, "explain", "x", "--method", "") == set(conserva.methods())
    assert completed(shell, script, "compare", "x", "--dtype", "f") == {"float16", "float32", "float64"}
    assert completed(shell, script, "completion", "") == set(SHELLS)
    assert completed(shell, script, "explain", "--model", "dig") == {"digits"}
    assert completed(shell, script, "explain", "--file", "rev") >= {"reviews.txt"}
    assert completed(shell, script, "train", "--keep", "") == {"best", "last"}


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_lists_files_with_spaces_and_values_after_an_equals_sign(script: Path) -> None:
    assert completed("bash", script, "compare", "x", "--methods", "gi,ex") == {"gi,exact", "gi,exact+res"}
    assert completed("bash", script, "explain", "--method", "=", "ex") == {"exact", "exact+res"}
    assert completed("bash", script, "--debug", "audit", "--rules", "attn") == {"attnlrp", "attnlrp+res"}
    assert completed("bash", script, "explain", "--file", "reviews") == {"reviews one.csv", "reviews.txt"}
    assert completed("bash", script, "audit", "") >= set(BUNDLED_MODELS)
    assert completed("bash", script, "unknown", "--") == set()
    assert completed("bash", script, "explain", "$(touch", "x)") == set()
    assert not (script.parent / "x)").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_of_every_command_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    _, commands = parser_of_all()
    for name, parser in commands.items():
        assert name in script
        for action in parser._actions:
            for option in action.option_strings:
                assert (f"-l {option[2:]}" if shell == "fish" and option.startswith("--") else option) in script
