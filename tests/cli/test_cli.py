"""The command line, called as a user calls it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import conserva
from conserva.cli import main

SENTENCE = "has a lot of the virtues of eastwood at his best."


def test_explain_prints_the_words_and_the_books(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", SENTENCE]) == 0
    out = capsys.readouterr().out
    assert "positive" in out
    assert "virtues" in out
    assert "gap" in out


def test_explain_as_json_is_an_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", SENTENCE, "--json", "--method", "exact", "--target", "negative"]) == 0
    out = capsys.readouterr().out
    one = conserva.Explanation.from_json(out)
    assert one.target == "negative"
    assert one == conserva.explain(conserva.load(), SENTENCE, "negative", method="exact", fingerprint=True)


def test_explain_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page, picture = tmp_path / "texts.txt", tmp_path / "out.html", tmp_path / "out.png"
    path.write_text("a joy.\n\nnot much of anything.\n", encoding="utf-8")
    assert main(["explain", "--file", str(path), "--json", "--words", "--html", str(page), "--png", str(picture)]) == 0
    captured = capsys.readouterr()
    assert [one["target"] for one in json.loads(captured.out)] == ["positive", "negative"]
    assert f"wrote {page}" in captured.err
    assert page.exists()
    assert picture.exists()


def test_explain_standard_input() -> None:
    command = [sys.executable, "-m", "conserva.cli", "explain", "-", "--json", "--hide-special", "--words"]
    done = subprocess.run(command, input="a naïve joy.", capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0
    assert json.loads(done.stdout)["features"] == ["a", "naive", "joy", "."]
    bad = subprocess.run(command, input=b"\xff\xfe\xfa", capture_output=True)
    assert bad.returncode == 1
    assert b"not UTF-8" in bad.stderr


def test_compare_has_a_row_for_every_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "demo.html"
    assert main(["compare", SENTENCE, "--words", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in conserva.methods())
    assert page.read_text(encoding="utf-8").count("<section>") == len(conserva.methods())
    assert main(["compare", "a joy.", "--methods", "gi,exact", "--json"]) == 0
    assert conserva.Comparison.from_json(capsys.readouterr().out).methods == ("gi", "exact")


def test_a_method_that_does_not_apply_says_why_in_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import BartConfig, BartForSequenceClassification

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = BartConfig(vocab_size=12000, eos_token_id=3, pad_token_id=0, **sizes, **heads)
    task = conserva.load()
    BartForSequenceClassification(config).save_pretrained(tmp_path / "bart")
    task.tokenizer.save_pretrained(tmp_path / "bart")
    page = tmp_path / "bart.html"
    assert main(["compare", "a joy.", "--model", str(tmp_path / "bart"), "--html", str(page)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "attention maps do not distinguish the two" in out
    text = page.read_text(encoding="utf-8")
    assert "<dt>gae</dt><dd>" in text
    assert all(f"<bdi>{name}</bdi>" in text or f"<dt>{name}</dt>" in text for name in conserva.methods())


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{out}" for name in conserva.methods())
    assert "[steps=50, baseline=None]" in out
    assert main(["methods", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == conserva.methods()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["explain", ""], "is empty"),
        (["explain", "   "], "is empty"),
        (["explain"], "Give one input"),
        (["explain", "a", "--file", "b"], "Give one input"),
        (["explain", "--file", "no-such-file.txt"], "No such file"),
        (["explain", "a joy.", "--model", "no/such-model"], "'sentiment'"),
        (["explain", "a joy.", "--target", "happy"], "'negative', 'positive'"),
        (["explain", "a joy.", "--target", "9"], "out of range"),
        (["explain", "a joy.", "--method", "exat"], "Did you mean 'exact'"),
        (["explain", "good " * 600], "--truncate"),
        (["compare", "a joy.", "--methods", "exat"], "Did you mean 'exact'"),
        (["compare", "a joy.", "--target", "happy"], "'negative', 'positive'"),
    ],
)
def test_errors_are_one_line_on_standard_error(arguments, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_a_file_that_is_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("na\xefve".encode("latin-1"))
    assert main(["explain", "--file", str(path)]) == 1
    assert "latin.txt, row 1: The text is not valid UTF-8." in capsys.readouterr().err


def test_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = tmp_path / "audit.html", tmp_path / "audit.png"
    assert main(["audit", "--html", str(page), "--png", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "pooler.activation" in out
    assert all(rules in out for rules in ("gi", "ah+ln", "exact"))
    assert picture.stat().st_size > 10_000
    assert "ah+ln" in page.read_text(encoding="utf-8")
    assert main(["audit", "sentiment", "--text", "a joy.", "--target", "1", "--rules", "exact", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert conserva.Audit.from_json(json.dumps(found["exact"])).rules == "exact"


def test_audit_fails_on_a_gap_that_is_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--rules", "exact", "--max-gap", "1e-3"]) == 0
    assert main(["audit", "--rules", "ah+ln", "--max-gap", "1e-3"]) == 1
    captured = capsys.readouterr()
    assert "under 'ah+ln' the largest gap is" in captured.err
    assert main(["audit", "one", "--model", "other"]) == 1
    assert main(["audit", "--rules", "ahln"]) == 1
    assert "rules='ahln' is unknown" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["explain"], ["compare"], ["methods"], ["audit"], ["evaluate"]])
def test_help_teaches_by_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "conserva" in out
    assert "examples:" in out or command in ([], ["methods"])


def test_a_wrong_call_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["explian", "a joy."])
    assert stop.value.code == 2
    assert "explian" in capsys.readouterr().err


def test_interrupting_leaves_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("a fine film about many things, and a long one.\n" * 20000, encoding="utf-8")
    command = [sys.executable, "-m", "conserva.cli", "explain", "--file", str(path), "--json"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a child would inherit that it is ignored
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "[\n"  # the first texts are explained
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in err


def test_progress_outside_a_terminal_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from conserva.cli import progress

    clock = iter([0.0, 1.0, 40.0, 50.0, 8000.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.progress("evaluating") as say:
        for done in (5, 10, 15, 20):
            say(done, 1000)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "evaluating: 10 of 1000, 0.1/s, 2.2 h left",
        "evaluating: 20 of 1000, 533 s each, 145.2 h left",
    ]


def test_pairs_are_evaluated_from_two_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "pairs.csv"
    data.write_text("a,b,label\na joy.,witty.,positive\nDull.,a bore.,negative\n", encoding="utf-8")
    options = ["--methods", "gi", "--no-reference", "--steps", "2", "--json"]
    assert main(["evaluate", "--data", str(data), "--text-column", "a", "--with-column", "b", *options]) == 0
    pairs = [(("a joy.", "witty."), "positive"), (("Dull.", "a bore."), "negative")]
    expected = conserva.evaluate(conserva.load(), pairs, ["gi"], reference=False, steps=2)
    found = json.loads(capsys.readouterr().out)
    assert found["methods"][0]["auac"] == pytest.approx(expected.to_dict()["methods"][0]["auac"])


def test_in_a_terminal_long_entries_of_a_list_are_continued_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["methods"]) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 60
    assert sum(not line.startswith(" ") for line in lines) == len(whole.splitlines())
    assert " ".join(" ".join(lines).split()) == " ".join(whole.split())
