"""The command line on molecules and digits, called as a user calls it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import conserva
from conserva.cli import main
from conserva.datasets.drawn import digit_graph, drawn_digit

pytest.importorskip("rdkit", reason="molecules are read by RDKit")

LONG = "C" * 129


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command printed that went well."""
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_explain_a_molecule(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "explain", "--smiles", "CCO")
    assert "3 atoms" in out
    assert "O (atom 2)" in out
    assert "virtual node" in out
    assert "exact · bace" in out
    assert "gap" in out


def test_explain_a_digit(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "explain", "--digit", "7")
    assert out.startswith("7: ")
    assert "a drawn 7" in out
    assert "75 superpixels" in out
    assert "exact · mnist" in out


@pytest.mark.parametrize(
    ("option", "given", "model", "target"),
    [
        ("--smiles", "CCO", "bace", "inactive"),
        ("--smiles", "C[N+](C)C", "bace", "active"),
        ("--digit", "4", "mnist", "9"),
    ],
)
def test_json_is_the_explanation(
    option: str, given: str, model: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(capsys, "explain", option, given, "--json", "--target", target)
    one = conserva.Explanation.from_json(out)
    asked = digit_graph(given) if option == "--digit" else given
    assert one == conserva.explain(conserva.load(model), asked, target, fingerprint=True)
    assert (one.target, one.method, one.features[0]) == (target, "exact", "virtual node")
    assert one.ledger is not None
    assert one.output == pytest.approx(math.fsum(one.scores) + one.ledger.biases, abs=1e-4)
    assert len(one.features) == (76 if option == "--digit" else 1 + sum(letter.isalpha() for letter in given))


def test_a_contrast_of_digits(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        json.loads(said(capsys, "explain", "--digit", "7", "--json", "--target", target))
        for target in ("7 - 1", "7", "1")
    ]
    both, seven, one = (np.array(part["scores"]) for part in found)
    np.testing.assert_allclose(both, seven - one, atol=1e-4)
    assert found[0]["probability"] is None


@pytest.mark.parametrize("given", [["--smiles", "CCO"], ["--digit", "7"]], ids=str)
def test_the_virtual_node_is_special_and_every_node_is_a_word(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = json.loads(said(capsys, "explain", *given, "--json"))
    hidden = json.loads(said(capsys, "explain", *given, "--json", "--hide-special"))
    assert hidden["features"] == plain["features"][1:]
    assert hidden["scores"] == plain["scores"][1:]
    for option in ("--words", "--truncate"):  # made for texts, without effect on graphs
        assert json.loads(said(capsys, "explain", *given, "--json", option)) == plain


@pytest.mark.parametrize("given", [["--smiles", "CC(=O)Nc1ccc(O)cc1"], ["--digit", "3"]], ids=str)
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_pages_and_pictures(given: list[str], ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = tmp_path / "one.html", tmp_path / f"one.{ending}"
    assert main(["explain", *given, "--html", str(page), "--png", str(picture)]) == 0
    err = capsys.readouterr().err
    assert f"wrote {page}" in err
    assert f"wrote {picture}" in err
    text = page.read_text(encoding="utf-8")
    assert "<svg" in text
    assert "virtual node" in text
    if ending == "png":
        with Image.open(picture) as read:
            assert np.ptp(np.asarray(read)) > 0
    else:
        assert "</svg>" in picture.read_text(encoding="utf-8")


def test_a_file_of_smiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "molecules.txt"
    path.write_text("CCO\n\nCCN\n", encoding="utf-8")
    found = json.loads(said(capsys, "explain", "--file", str(path), "--model", "bace", "--json"))
    assert [one["text"] for one in found] == ["CCO", "CCN"]


def test_a_digit_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(drawn_digit(5)).save(tmp_path / "five.png")
    found = json.loads(said(capsys, "explain", "--digit", str(tmp_path / "five.png"), "--json"))
    assert (found["target"], found["text"]) == ("5", "five.png")


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "four.html"
    out = said(capsys, "compare", "--digit", "4", "--methods", "gi,ah+ln", "--html", str(page))
    assert out.startswith("4: ")
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("gi ", "ah+ln "))] == ["gi", "ah+ln"]
    assert page.read_text(encoding="utf-8").count('<div class="picture">') == 4  # in the table, and by themselves
    found = json.loads(said(capsys, "compare", "--smiles", "CCO", "--json"))
    assert {*(one["method"] for one in found["explanations"]), *found["refused"]} == set(conserva.methods())
    for one in found["explanations"]:
        assert one["features"] == ["virtual node", "C", "C", "O"], one["method"]
    out = said(capsys, "compare", "--smiles", "CCO")
    assert all(name in out for name in conserva.methods())


def test_evaluate_a_column_of_smiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "molecules.csv"
    path.write_text("smiles,label\nCCO,inactive\nCCN,active\nc1ccccc1O,inactive\n", encoding="utf-8")
    base = ("evaluate", "--model", "bace", "--data", str(path), "--methods", "gi,ah+ln", "--json")
    found = json.loads(said(capsys, *base))
    assert (found["samples"], found["protocol"]["mask"]) == (3, "token")
    assert found["accuracy"] == pytest.approx(2 / 3, abs=1e-4)  # to the model all three are inactive
    assert json.loads(said(capsys, *base, "--mask", "induced"))["protocol"]["mask"] == "induced"


def test_evaluate_names_the_row_that_is_no_molecule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "molecules.csv"
    path.write_text("smiles,label\nCCO,0\nC(C,1\n", encoding="utf-8")
    assert main(["evaluate", "--model", "bace", "--data", str(path), "--methods", "gi"]) == 1
    err = capsys.readouterr().err
    assert "Sample 2 of " in err
    assert "'C(C' is not a valid SMILES" in err
    path.write_text("smiles,label\nCCO,0\nCCN,1\n", encoding="utf-8")
    assert main(["evaluate", "--model", "mnist", "--data", str(path), "--methods", "gi"]) == 1
    assert "'CCO' is not a graph: mnist takes a graph or a 28 x 28 image" in capsys.readouterr().err


def test_audit_on_smiles(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ("--text", "CCO", "--text", "c1ccccc1")
    found = json.loads(said(capsys, "audit", "bace", *texts, "--rules", "ah+ln,exact", "--json"))
    exact, other = (conserva.Audit.from_json(json.dumps(found[rules])) for rules in ("exact", "ah+ln"))
    assert (exact.samples, exact.model) == (2, "bace")
    assert exact.gap_share() < 1e-5 < other.gap_share()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["explain", "--smiles", "C(C"], ["'C(C' is not a valid SMILES", "extra open parentheses", "position 2"]),
        (["explain", "--smiles", "C1CC"], ["unclosed ring"]),
        (["explain", "--smiles", "F(F)F"], ["valence"]),
        (["explain", "--smiles", ""], ["smiles is ''"]),
        (["explain", "--smiles", "CCO ethanol"], ["'CCO ethanol'", "no name after it"]),
        (["explain", "--smiles", LONG], ["129 nodes, bace takes 128", "max_nodes"]),
        (["compare", "--smiles", LONG, "--methods", "gi"], ["129 nodes, bace takes 128"]),
        (["explain", "--smiles", "CCO", "--digit", "7"], ["--audio, not --smiles and --digit"]),
        (["explain", "CCO", "--smiles", "CCO"], ["--audio, not text and --smiles"]),
        (["explain", "--file", "a.txt", "--digit", "7"], ["--audio, not --file and --digit"]),
        (["compare", "CCO", "--digit", "7"], ["--audio, not text and --digit"]),
        (["compare"], ["--smiles or --digit or --prompt"]),
        (["explain", "--smiles", "CCO", "--model", "sentiment"], ["--smiles 'CCO': sentiment takes texts", "'bace'"]),
        (["explain", "--digit", "7", "--model", "sentiment"], ["--digit '7': sentiment takes texts", "'mnist'"]),
        (["compare", "--smiles", "CCO", "--model", "sentiment"], ["--smiles 'CCO': sentiment takes texts"]),
        (["compare", "--digit", "7", "--model", "sentiment"], ["--digit '7': sentiment takes texts"]),
        (["explain", "--digit", "7", "--model", "bace"], ["'a drawn 7'", "bace takes ids", "give another graph"]),
        (["explain", "--smiles", "CCO", "--model", "mnist"], ["'CCO' is not a graph: mnist takes"]),
        (["explain", "a joy.", "--model", "mnist"], ["'a joy.' is not a graph: mnist takes"]),
        (["explain", "a joy.", "--model", "bace"], ["smiles is 'a joy.'"]),
        (["explain", "--digit", "77"], ["'77' is not a digit: give 0 to 9"]),
        (["explain", "--digit", "no-such.png"], ["'no-such.png' is not a digit"]),
        (["explain", "--smiles", "CCO", "--target", "happy"], ["'inactive', 'active'"]),
        (["explain", "--smiles", "CCO", "--target", "2"], ["target=2 is out of range"]),
        (["audit", "--model", "bace"], ["bace takes molecules", "give SMILES, such as --text CCO"]),
        (["audit", "--model", "mnist"], ["mnist takes graphs", "conserva.audit(task, graphs)"]),
        (["audit", "mnist", "--text", "7"], ["mnist takes graphs", "conserva.audit(task, graphs)"]),
        (["audit", "bace", "--text", "a joy."], ["smiles is 'a joy.'"]),
    ],
    ids=lambda one: " ".join(one)[:60],
)  # fmt: skip
def test_errors_are_one_line_on_standard_error(
    arguments: list[str], says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(one in captured.err for one in says), captured.err
    assert captured.err.count("\n") == 1
