"""How commands end: any failure is one line on standard error and an exit code, and nothing is half-written."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import conserva
from conserva.cli import main
from conserva.cli.exits import exit_code
from conserva.cli.output import report_written

FAILURES: list[tuple[BaseException, int, str]] = [
    (conserva.Error("text='' is empty."), 1, "text='' is empty."),
    (KeyboardInterrupt(), 130, "interrupted"),
    (MemoryError(), 1, "Memory ran out"),
    (torch.OutOfMemoryError("CUDA out of memory."), 1, "Memory ran out"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), 1, "Memory ran out"),
    (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 1, "Memory ran out"),
    (RuntimeError("can't start new thread"), 1, "Memory ran out"),
    (OSError(errno.ENOSPC, "No space left on device", "a/b.html"), 1, "a/b.html: No space left on device."),
    (OSError(errno.ENOSPC, "No space left on device"), 1, "Standard output: No space left on device."),
    (OSError(errno.EMFILE, "Too many open files", "x"), 1, "Too many files are open"),
    (RuntimeError("could not create a primitive"), 1, "Memory ran out"),
    (PermissionError(errno.EACCES, "Permission denied", "x\x1b[2J"), 1, "x\\x1b[2J: Permission denied."),
    (TypeError("a\nb\x1b]0;c\x07"), 1, "Internal error, TypeError: a b\\x1b]0;c\\x07. Run it again with --debug"),
    (AssertionError(), 1, "Internal error, AssertionError: no message."),
    (RecursionError("maximum recursion depth exceeded"), 1, "Internal error, RecursionError"),
    (ValueError("x" * 100_000), 1, "Internal error, ValueError: xxx"),
]


@pytest.mark.parametrize(("error", "code", "says"), FAILURES, ids=lambda one: type(one).__name__)
def test_a_failure_is_one_line(error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise error

    assert exit_code(fail) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"conserva: {says}")
    assert captured.err.count("\n") == 1
    assert captured.err[:-1].isprintable()
    assert len(captured.err) < 2100
    assert exit_code(fail, debug=True) == code
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise BrokenPipeError

    assert exit_code(fail) == 0
    assert capsys.readouterr().err == ""


INTERRUPTED = {
    "plainly": "signal.raise_signal(2)",
    "and a library makes it an error of its own": """
        try:
            signal.raise_signal(2)
        except KeyboardInterrupt:
            raise ImportError("initialization failed")
    """,
    "and this package makes it an error": """
        try:
            signal.raise_signal(2)
        except BaseException:
            raise conserva.Error("The model cannot be read.")
    """,
    "and a library goes on": """
        try:
            signal.raise_signal(2)
        except BaseException:
            pass
    """,
    "where nothing can be raised": """
        class Dropped:
            def __del__(self):
                signal.raise_signal(2)
        Dropped()
        raise OSError(28, "No space left on device")
    """,
    "and a library goes on for ever": """
        while True:
            try:
                signal.raise_signal(2)
                time.sleep(60)
            except BaseException:
                signal.signal(2, signal.SIG_IGN)
    """,
    "twice": """
        try:
            signal.raise_signal(2)
        finally:
            signal.raise_signal(2)
            time.sleep(60)
    """,
    "and again while it is told": """
        exits._close_output = lambda: signal.raise_signal(2)
        signal.raise_signal(2)
    """,
    "and does not return": """
        signal.raise_signal(14)
        time.sleep(60)
    """,
}


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="signals of POSIX")
@pytest.mark.parametrize("how", list(INTERRUPTED))
def test_an_interrupted_process_says_so_whatever_libraries_make_of_it(how: str) -> None:
    script = f"""
import signal, sys, time
import conserva
from conserva.cli import exits

exits._SECONDS_TO_END = 1
with exits.ending_at_once():
    pass
def work():
    {textwrap.indent(textwrap.dedent(INTERRUPTED[how]), "    ").strip()}
exits.leave(exits.exit_code(work))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout) == (130, "conserva: interrupted\n", "")


def test_a_line_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt that comes between a text and its line feed would put its own line behind the text."""
    written: list[str] = []
    monkeypatch.setattr("sys.stderr", type("Stream", (), {"write": lambda self, text: written.append(text)})())
    report_written("a.json", "b\x1b.json")
    assert written == ["wrote a.json\n", "wrote b\\x1b.json\n"]


def test_a_wrong_call_repeats_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["explain", "a joy.", "--no-such\x1b]0;owned\x07", "x" * 5000])
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert "--no-such\\x1b]0;owned\\x07" in captured.err
    assert "\x1b" not in captured.err
    assert len(captured.err) < 4000


def test_debug_stands_before_or_after_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "explain", ""], ["explain", "", "--debug"]):
        assert main(arguments) == 1
        assert "Traceback" in capsys.readouterr().err


def test_a_long_word_is_not_repeated_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "x" * 100_000 + " y" * 600]) == 1
    assert len(capsys.readouterr().err) < 2100
    with pytest.raises(conserva.Error) as error:
        conserva.explain(conserva.load(), "a joy.", "x" * 100_000)
    assert len(str(error.value)) < 2100


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (["evaluate", "--data", "x.csv", "--out", "out"], "pyarrow", "data"),
        (["evaluate", "--data", "x.csv", "--out", "out"], "matplotlib", "figures"),
        (["bias", "--data", "x.csv", "--out", "out"], "pyarrow", "data"),
        (["explain", "a joy.", "--png", "x.png"], "matplotlib", "figures"),
        (["compare", "a joy.", "--png", "x.pdf"], "matplotlib", "figures"),
        (["audit", "--png", "x.png"], "matplotlib", "figures"),
        (["reproduce", "text", "--out", "out"], "matplotlib", "figures"),
    ],
)
def test_what_is_missing_is_said_before_the_work(
    arguments: list[str],
    module: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def works(*_: Any, **__: Any) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("conserva._util.extras.find_spec", lambda name: None if name == module else name)
    monkeypatch.setattr("conserva.tasks.loading.load", works)
    monkeypatch.setattr("conserva.paper.experiments.run.reproduce", works)
    assert main(arguments) == 1
    assert capsys.readouterr().err.endswith(f"needs {module}: pip install 'conserva[{extra}]'.\n")
    assert not list(tmp_path.iterdir())


def test_a_study_in_python_asks_first_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("conserva._util.extras.find_spec", lambda name: None)
    monkeypatch.setattr("conserva.bias_study.run.Collector", None)
    with pytest.raises(conserva.Error, match=r"needs pyarrow: pip install 'conserva\[data\]'"):
        conserva.bias(conserva.load(), ["eastwood"], {"a": ["Eastwood"]}, out=tmp_path)


def test_too_little_space_is_said_before_the_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2**20})())
    with pytest.raises(conserva.Error, match=r"1\.0 MiB of disk space are free, about 16 MiB are needed"):
        conserva.evaluate(conserva.load(), ["a joy."], ["gi"], out=tmp_path)


def test_help_and_names_need_no_torch() -> None:
    script = "import sys, conserva; from conserva.cli.commands import parsed; assert 'torch' not in sys.modules; {}"
    for asked in ("print(dir(conserva))", "parsed(['explain', '--help'])", "parsed(['--version'])"):
        done = subprocess.run([sys.executable, "-c", script.format(asked)], capture_output=True, text=True, check=True)
        assert done.stdout


def test_every_public_name_is_there() -> None:
    assert set(dir(conserva)) == {*conserva.__all__, "__version__"}
    for name in conserva.__all__:
        assert callable(getattr(conserva, name)), name
    with pytest.raises(AttributeError, match="no attribute 'explan'"):
        _ = conserva.explan


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1"])
def test_output_in_another_encoding(encoding: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    text = "很好 καλό joy \x9b31m"
    expected = json.loads(conserva.explain(conserva.load(), text).to_json())
    with open(1, "w", encoding=encoding, closefd=False) as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert main(["explain", text, "--json"]) == 0
        found = json.loads(capfdbinary.readouterr().out.decode(encoding))
        assert found["text"] == expected["text"] == text
        assert main(["explain", text]) == 0
        stream.flush()
        assert b"\x9b" not in capfdbinary.readouterr().out


@pytest.mark.parametrize("when", ["while the libraries are imported", "at work", "after work"])
def test_the_message_after_an_interrupt_says_when_the_same_command_goes_on(when: str, tmp_path: Path) -> None:
    script = f"""
import signal, sys
from conserva.cli import commands, program

def interrupted(given):
    signal.raise_signal(2)

def nothing(given):
    pass

def after(given):
    try:
        signal.raise_signal(2)
    except KeyboardInterrupt:
        pass

when = {when!r}
commands.import_libraries = interrupted if when.startswith("while") else nothing
module = sys.modules["conserva.cli.bias_command"]
module._bias = interrupted if when == "at work" else after
sys.argv = ["conserva", "bias", "--data", "x.csv", *sys.argv[1:]]
program()
"""
    (tmp_path / "x.csv").write_text("text\na joy.\n")
    for out, advice in (([], ""), (["--out", "out"], "; the same command goes on")):
        done = subprocess.run(
            [sys.executable, "-c", script, *out], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        expected = "" if when.startswith("while") else advice
        assert (done.returncode, done.stderr, done.stdout) == (130, f"conserva: interrupted{expected}\n", "")


def test_advice_of_one_command_is_not_that_of_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    from conserva.cli.exits import advise_if_interrupted

    def interrupted() -> None:
        raise KeyboardInterrupt

    def advised() -> None:
        advise_if_interrupted(lambda: "go\x1b[2J on")
        raise KeyboardInterrupt

    assert (exit_code(advised), exit_code(interrupted)) == (130, 130)
    assert capsys.readouterr().err == "conserva: interrupted; go\\x1b[2J on\nconserva: interrupted\n"


def test_options_of_views_reach_the_views(monkeypatch: pytest.MonkeyPatch) -> None:
    from conserva.views import audit_terminal, terminal

    seen: list[dict[str, Any]] = []
    for module, name in ((terminal, "show"), (terminal, "show_comparison"), (audit_terminal, "show")):
        monkeypatch.setattr(module, name, lambda *_, **options: seen.append(options))
    assert main(["explain", "a joy.", "--numbers"]) == 0
    assert main(["explain", "a joy."]) == 0
    assert main(["compare", "a joy.", "--methods", "gi", "--numbers"]) == 0
    assert main(["audit", "--text", "a joy.", "--rules", "gi", "--full"]) == 0
    assert main(["audit", "--text", "a joy.", "--rules", "gi"]) == 0
    assert seen == [{"numbers": True}, {"numbers": False}, {"numbers": True}, {"full": True}, {"full": False}]


def test_dtype_batches_and_windows_reach_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "good " * 600, "--windows", "128,32", "--dtype", "float64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["provenance"]["dtype"] == "float64"
    assert found["provenance"]["windows"] == [128, 32]
    assert len(found["windows"]) > 4
    assert (
        main(["compare", "good " * 600, "--methods", "gi,exact", "--batch-tokens", "600", "--json", "--windows"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [len(each["windows"]) for each in found["explanations"]] == [2, 2]
    assert main(["doctor", "--dtype", "float64", "--text", "a joy.", "--json"]) == 0
    assert main(["explain", "a joy.", "--windows", "9,9"]) == 1
    assert "windows=(9, 9)" in capsys.readouterr().err
