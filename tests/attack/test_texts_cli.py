"""Hostile text through the command line: a model whose tokens are single characters, and whose labels are commands."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from attacking import ESCAPES, MARKUP, SCRIPTS, SEED, add_cases, hostile_text, rng_of, run, times
from conserva.models.quiet import quiet_loading
from leaving import BAD, Elements
from tiny import bert

LABELS = ("\x1b]0;owned\x07<b>no\n</b>", "[bold red]yes[/]\x9b31m$x^2$")


def characters() -> PreTrainedTokenizerFast:
    """Return a tokenizer that knows every character below 0x250 and those of the hostile texts, and joins none."""
    marks = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    known = dict.fromkeys((*map(chr, range(0x250)), *"".join((*ESCAPES, *MARKUP, *SCRIPTS))))
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate((*marks, *known))}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **named)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models") / "model \x1b[2J\x9b31m[bold]"
    tokenizer = characters()
    model = bert(vocab_size=len(tokenizer), id2label=dict(enumerate(LABELS)), label2id={}, max_position_embeddings=64)
    with quiet_loading():
        model.save_pretrained(found)
    tokenizer.save_pretrained(found)
    return found


TEXT = "TEXT"
COMMANDS = {
    "explain": ("explain", TEXT, "--truncate"),
    "words": ("explain", TEXT, "--truncate", "--words", "--method", "exact", "--html", "x.html", "--png", "x.svg"),
    "trace": ("explain", TEXT, "--truncate", "--trace", "--html", "x.html", "--png", "x.svg"),
    "compare": ("compare", TEXT, "--truncate", "--methods", "gi,exact,rollout,random", "--html", "x.html"),
    "contrast": ("explain", TEXT, "--truncate", "--target", LABELS[1], "--contrast", LABELS[0]),
    "no such label": ("explain", "a joy", "--target", TEXT),
    "doctor": ("doctor", "--text", TEXT),
    "audit": ("audit", "--text", TEXT, "--html", "x.html", "--png", "x.svg"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_text_reaches_a_terminal_as_a_command(name: str, folder: Path, tmp_path: Path) -> None:
    rng = rng_of(f"command line {name}")
    for case in range(times(2)):
        text = f"a{hostile_text(rng, parts=3)[:60]}b"
        add_cases("hostile texts")
        where = tmp_path / str(case)
        where.mkdir()
        done = run([*(text if one is TEXT else one for one in COMMANDS[name]), "--model", str(folder)], cwd=where)
        told = f"ATTACK_SEED={SEED}, {name}, case {case}, text {text!r}: {done}"
        assert done.code == (1 if name == "no such label" else 0), told
        for stream in (done.out, done.err):
            assert not BAD.search(stream.decode("utf-8")), told
        if (page := where / "x.html").exists():
            found = page.read_text(encoding="utf-8")
            words = {one for element in Elements(found).outside for one in element}
            assert not BAD.search(found), told
            assert not {"b", "script", "img", "onerror", "onload"} & words, told
        if (picture := where / "x.svg").exists():
            ElementTree.fromstring(picture.read_bytes())
