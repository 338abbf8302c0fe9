"""What comes before the libraries that take seconds to import: help, completion, and every check of arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import conserva
from conserva.cli import main

HEAVY = ("torch", "transformers", "numpy", "rich", "pandas", "pyarrow")

SCRIPT = f"""
import sys
from conserva.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
loaded = [name for name in {HEAVY!r} if name in sys.modules]
print("loaded", *loaded, file=sys.stderr)
sys.exit(code)
"""


def without_libraries(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """Run a command in a process of its own, check that it imports none of the libraries, and return how it ended."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], cwd=folder, capture_output=True, text=True)
    *lines, loaded = done.stderr.splitlines()
    assert loaded == "loaded", (arguments, loaded)
    return done.returncode, done.stdout, "\n".join(lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["explain", "--help"],
        ["compare", "--help"],
        ["train", "--help"],
        ["completion", "bash"],
        ["methods"],
        ["methods", "--json"],
    ],
    ids=" ".join,
)
def test_what_needs_no_libraries_imports_none(arguments: list[str], tmp_path: Path) -> None:
    code, out, err = without_libraries(arguments, tmp_path)
    assert (code, err) == (0, "")
    assert out


WRONG: list[tuple[list[str], int, str]] = [
    (["explian", "a joy."], 2, "Did you mean 'explain'?"),
    (["explain", "a joy.", "--metod", "gi"], 2, "unrecognized arguments: --metod gi. Did you mean '--method'?"),
    (["explain", "a joy.", "--hide-specal"], 2, "Did you mean '--hide-special'?"),
    (["explain", "a joy.", "--nope"], 2, "unrecognized arguments: --nope. See conserva explain --help."),
    (["explain", "A man eats.", "He eats."], 2, "'He eats.'. The second text of a pair is given by '--with'"),
    (["compare", "a joy.", "--methods", "gi", "exact"], 2, "commas: --methods gi,exact. See conserva compare"),
    (["compare", "a joy.", "--methods", "gi", "exakt"], 2, "unrecognized arguments: exakt. The second text"),
    (["audit", "sentiment", "--rules", "gi", "ln"], 2, "Separate the values of --rules by commas: --rules gi,ln"),
    (["methods", "gi"], 2, "conserva methods: error: unrecognized arguments: gi. See"),
    (["models", "a", "b"], 2, "unrecognized arguments: a b. See conserva models --help."),
    ([], 2, "the following arguments are required: COMMAND. See conserva --help."),
    (["explain", "a joy.", "--dtype", "float31"], 2, "Did you mean 'float32'?"),
    (["explain", "a joy.", "--windows", "12"], 2, "'12' is not LENGTH,OVERLAP, such as 256,64"),
    (["explain", "a joy.", "--method", "exat"], 1, "method='exat' is unknown. Did you mean 'exact'?"),
    (["explain", "a joy.", "--method", "ig:step=3"], 1, "Did you mean 'steps'?"),
    (["explain", "a joy.", "--method", "ig:steps=many"], 1, "steps=many is not a whole number"),
    (["explain", "a joy.", "--method", "gi:gamma=-1"], 1, "gamma=-1.0 must be a positive number"),
    (["compare", "a joy.", "--methods", "gi,"], 1, "method='' is unknown"),
    (["evaluate", "--data", "x.csv", "--methods", "gi,rolout"], 1, "Did you mean 'rollout'?"),
    (["bias", "--data", "x.csv", "--method", "exact:at=nowhere"], 1, "at=nowhere is not one of inputs, embeddings"),
    (["audit", "--rules", "gi,ahln"], 1, "rules='ahln' is unknown. Did you mean 'ah+ln'?"),
    (["doctor", "--rules", ""], 1, "rules='' is unknown"),
    (["explain", "a joy.", "--model", "sentimnet"], 1, "Did you mean 'sentiment'?"),
    (["doctor", "digts"], 1, "Did you mean 'digits'?"),
    (["explain", "a joy.", "--png", "x.gif"], 1, "--png x.gif ends in '.gif': choose .png, .svg or .pdf."),
    (["explain", "a joy.", "--html", "no/such/x.html"], 1, "the folder 'no/such' does not exist"),
    (["explain", "a joy.", "--out", "x.csv"], 1, "--out 'x.csv' does not apply to a single input"),
    (["explain", "a joy.", "--text-column", "x"], 1, "--text-column 'x' does not apply to a single input"),
    (["explain", "--file", "t.txt", "--out", "x.xlsx"], 1, "ends in '.xlsx': choose .csv, .jsonl or .parquet."),
    (["explain", "--file", "t.txt", "--out", "x.csv", "--json"], 1, "--json does not apply to --out"),
    (["explain", "--file", "t.txt", "--out", "no/x.csv"], 1, "the folder 'no' does not exist"),
    (["explain", "--file", "t.xlsx"], 1, "ends in '.xlsx': choose .txt, .csv, .tsv, .jsonl, .ndjson, .parquet."),
    (["explain", "--file", "none.csv"], 1, "No such file"),
    (["explain", "--file", "t.txt", "--generate", "3"], 1, "does not work with --generate"),
    (["explain", "a joy.", "--windows", "--truncate"], 1, "--windows and --truncate exclude each other"),
    (["explain", "a joy.", "--batch-tokens", "0"], 1, "--batch-tokens 0 is too small"),
    (["explain", "a joy.", "--trace", "--words"], 1, "--words does not apply to a trace"),
    (["explain", "a joy.", "--score", "logit"], 1, "applies to generated tokens only"),
    (["explain"], 1, "Give one input"),
    (["audit", "--max-gap", "nan"], 1, "is not a share of a ledger"),
    (["audit", "one", "--model", "other"], 1, "Two models are given"),
    (["audit", "a joy from start to end."], 1, "is not a model: give a text by --text"),
    (["bias", "--data", "x.csv", "--level", "2"], 1, "--level 2 is not a significance level"),
    (["train", "sst3", "--out", "x"], 1, "dataset='sst3' is unknown. Did you mean 'sst2'?"),
    (["train", "sst2", "--out", "x", "--width", "8"], 1, "--width is for graphs"),
    (["reproduce", "text", "--out", "x", "--jobs", "0"], 1, "--jobs 0 is not positive"),
    (["reproduce", "text", "--out", "x", "--seeds", "a"], 1, "--seeds a is not a list of integers"),
    (["reproduce", "text", "--out", "x", "--datasets", "sst2,imbd"], 1, "'imbd' is unknown. Did you mean 'imdb'?"),
    (["evaluate", "--data", "t.txt", "--steps", "9" * 30], 1, "is more than 100,000: give fewer"),
    (["evaluate", "--data", "t.txt", "--protocol", "papr"], 1, "protocol='papr' is unknown"),
    (["evaluate", "--data", "none.csv"], 1, "'none.csv' is not a file: check the path"),
    (["evaluate", "--data", "x/y/z"], 1, "is neither a file nor a valid name"),
    (["bias", "--data", "none.txt"], 1, "--data none.txt cannot be read: No such file"),
    (["bias", "--data", "t.txt", "--split", "dev"], 1, "--data t.txt has no columns"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), WRONG, ids=[" ".join(each[0]) for each in WRONG])
def test_wrong_arguments_are_refused(
    arguments: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def imports(_: object) -> None:
        raise AssertionError("the libraries are imported before the arguments are checked")

    monkeypatch.chdir(tmp_path)
    for name in ("t.txt", "t.xlsx"):
        Path(name).write_text("a joy.\n")
    monkeypatch.setattr("conserva.cli.commands.import_libraries", imports)
    try:
        found = main(arguments)
    except SystemExit as stop:
        found = int(str(stop.code))
    assert found == code
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.txt", "t.xlsx"]


def test_checks_of_arguments_import_no_libraries(tmp_path: Path) -> None:
    """The checks of one command each, in real processes."""
    (tmp_path / "t.csv").write_text("text\na joy.\n")
    for arguments, code in (
        (["explian"], 2),
        (["explain", "--file", "t.csv", "--text-column", "txt"], 1),
        (["compare", "a joy.", "--methods", "exat"], 1),
        (["audit", "--rules", "ahln"], 1),
        (["train", "sst3", "--out", "x"], 1),
    ):
        found, out, err = without_libraries(arguments, tmp_path)
        assert (found, out) == (code, ""), err
        assert "Did you mean" in err


def test_the_model_may_be_a_folder_with_a_similar_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sentiments").mkdir()
    for name in ("sentiments", "someone/sentimnet", "./sentimnet"):
        assert main(["explain", "a joy.", "--model", name]) == 1
        assert "Did you mean" not in capsys.readouterr().err


def test_a_misspelt_label_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "a joy.", "--target", "positve"]) == 1
    assert "'negative', 'positive'. Did you mean 'positive'?" in capsys.readouterr().err
    with pytest.raises(conserva.Error, match="Did you mean 'negative'"):
        conserva.explain(conserva.load(), "a joy.", "positive - negativ")


def test_options_of_methods_are_the_arguments_of_their_functions() -> None:
    import inspect
    from importlib import import_module

    from conserva.attribution import registry

    for entry in registry._ALL.values():
        if entry.function is None:
            continue
        module, _, name = entry.function.partition(":")
        function = getattr(import_module(f"conserva.attribution.{module}"), name)
        named = [
            each.name for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY
        ]
        assert named == list(entry.options)


def test_names_of_graph_datasets_agree() -> None:
    from conserva.datasets.catalogue import GRAPH_NAMES
    from conserva.datasets.graph_catalogue import GRAPH_DATASETS

    assert tuple(GRAPH_DATASETS) == GRAPH_NAMES


def test_the_package_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "conserva", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"conserva {conserva.__version__}\n")
