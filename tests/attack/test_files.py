"""Files of every kind that is read, changed at random: reading works or says in one line why not, and runs nothing."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conserva
import hostile_models
from attacking import add_cases, hostile_text, rng_of, times
from conserva.bias_study.lexicon import lexicon_of
from conserva.bias_study.mentions import Words
from conserva.bias_study.tagger import tagger_of
from conserva.datasets import dataset, mnist, read_labelled
from conserva.datasets.drawn import digit_graph, drawn_digit
from conserva.datasets.molecules import bace, molecule
from in_child import failures
from mutations import mutated, mutated_json

Mutator = Callable[..., tuple[str, bytes]]


def attacked(folder: Path, count: int, kinds: Mapping[str, tuple[bytes, Mutator, Callable[[Path], Any]]]) -> None:
    """Change files of several kinds in turns, name of a file -> its content, what changes it and what reads it."""
    rng = rng_of(f"files {sorted(kinds)}")
    others = [content for content, _, _ in kinds.values()]
    cases: dict[str, Callable[[], Any]] = {}
    for number in range(times(count)):
        name = list(kinds)[number % len(kinds)]
        content, mutator, read = kinds[name]
        how, changed = mutator(rng, content, others)

        def case(path: Path = folder / str(number) / name, changed: bytes = changed, read: Any = read) -> None:
            path.parent.mkdir()
            path.write_bytes(changed)
            try:
                read(path)
            finally:
                shutil.rmtree(path.parent)

        cases[f"{number} {name} {how!r:.200}"] = case
    report(cases)


def report(cases: Mapping[str, Callable[[], Any]]) -> None:
    wrong = failures(cases)
    add_cases("damaged files", len(cases))
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong[:40])


ROWS = [{"text": f"a joy, number {i}.", "label": i % 2, "split": "train"} for i in range(8)]


def test_tables(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), file)
    lines = [",".join(ROWS[0]), *(f'"{row["text"]}",{row["label"]},{row["split"]}' for row in ROWS)]
    table = "\n".join(lines).encode()
    attacked(
        tmp_path,
        50,
        {
            "a.csv": (table, mutated, read_labelled),
            "a.tsv": (table.replace(b",", b"\t"), mutated, read_labelled),
            "a.json": (json.dumps(ROWS).encode(), mutated_json, read_labelled),
            "a.jsonl": ("\n".join(map(json.dumps, ROWS)).encode(), mutated, read_labelled),
            "a.parquet": (file.getvalue(), mutated, read_labelled),
        },
    )


def test_hostile_text_in_tables(tmp_path: Path) -> None:
    rng = rng_of("text in tables")
    cases: dict[str, Callable[[], Any]] = {}
    for number in range(times(10)):
        rows = [{hostile_text(rng): hostile_text(rng, surrogates=True), **row} for row in ROWS]
        for row in rows:
            row[rng.choice(["text", "label", "split"])] = hostile_text(rng, surrogates=True)
        (path := tmp_path / f"{number}.json").write_text(json.dumps(rows))
        cases[f"{number} {rows!r:.2000}"] = partial(read_labelled, path)
    report(cases)


def test_pictures(tmp_path: Path) -> None:
    from PIL import Image

    task = conserva.load("digits")
    kinds = {}
    for ending, how in (("png", {}), ("jpg", {}), ("gif", {}), ("bmp", {}), ("tif", {}), ("webp", {"lossless": True})):
        Image.fromarray(drawn_digit(3)).save(
            file := io.BytesIO(), "JPEG" if ending == "jpg" else ending_of(ending), **how
        )
        kinds[f"a.{ending}"] = (file.getvalue(), mutated, lambda path: task.encode(path))
    np.save(file := io.BytesIO(), drawn_digit(3))
    kinds["a.npy"] = (file.getvalue(), mutated, lambda path: digit_graph(str(path)))
    kinds["b.png"] = (kinds["a.png"][0], mutated, lambda path: digit_graph(str(path)))
    attacked(tmp_path, 48, kinds)


def ending_of(ending: str) -> str:
    return {"tif": "TIFF"}.get(ending, ending.upper())


def test_recordings(tmp_path: Path) -> None:
    from tiny_speech import speech, tone, written

    content = written(tmp_path / "a.wav", tone()).read_bytes()
    task = speech()
    attacked(tmp_path, 24, {"a.wav": (content, mutated, lambda path: task.encode_source(path, truncate=True))})


def test_published_files(tmp_path: Path) -> None:
    images = gzip.compress(np.array([2051, 10_000, 28, 28], ">i4").tobytes() + bytes(5000))
    labels = gzip.compress(np.array([2049, 10_000], ">i4").tobytes() + bytes(10_000))

    def read(path: Path) -> None:
        (folder := path.parent / "mnist").mkdir()
        for file in (mnist.IMAGES["test"].file, mnist.LABELS["test"].file):
            shutil.copy(path, folder / file)
        mnist.read("test", path.parent)

    attacked(tmp_path, 16, {"images.gz": (images, mutated, read), "labels.gz": (labels, mutated, read)})


def test_word_lists(tmp_path: Path) -> None:
    words = b"Ada\nGrace\njean-luc\nmother in law\n"
    attacked(tmp_path, 12, {"a.txt": (words, mutated, lambda path: lexicon_of([path]))})
    rng = rng_of("words of groups")
    cases: dict[str, Callable[[], Any]] = {}
    for number in range(times(12)):
        groups = {
            hostile_text(rng, surrogates=True): [
                hostile_text(rng, surrogates=True) + "a",
                rng.choice(["(", "\\", "*+"]) + "b",
            ]
            for _ in range(2)
        }
        text = " ".join([hostile_text(rng, surrogates=True), *(word for words in groups.values() for word in words)])
        cases[f"{number} {groups} {text!r}"] = lambda groups=groups, text=text: Words(lexicon_of(groups)).find(text)
    report(cases)


SMILES = ["CC(=O)Oc1ccccc1C(=O)O", "C[C@H](N)C(=O)O", "[13CH3+]", "c1ccc2c(c1)[nH]c1ccccc12", "F/C=C/F"]


def test_smiles() -> None:
    rng = rng_of("smiles")
    cases: dict[str, Callable[[], Any]] = {}
    for number in range(times(30)):
        given = rng.choice(SMILES)
        at = rng.randrange(len(given) + 1)
        extra = rng.choice(
            [
                hostile_text(rng, surrogates=True),
                rng.choice("()[]=#%0123456789+-@/\\.*") * rng.choice([1, 3, 2000]),
                "C(" * rng.choice([1, 2000]),
                "[C+99999999999]",
                "[999999999999C]",
                "κόσμε",
                "\x00",
            ]
        )
        given = given[:at] + extra + given[at:]
        cases[f"{number} {given!r:.300}"] = partial(molecule, given)
    report(cases)


def test_paths(tmp_path: Path, models: dict[str, Path]) -> None:
    """What is no file, or no name of one, wherever a path is taken."""
    from tiny_speech import speech

    rng = rng_of("paths")
    image, sound = conserva.load("digits"), speech()
    readers: dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
        "load": (("", ".gguf"), conserva.load),
        "read_labelled": ((".csv", ".tsv", ".json", ".jsonl", ".parquet", ""), read_labelled),
        "lexicon_of": (("", ".txt"), lexicon_of),
        "lexicon_of a list": ((".txt",), lambda path: lexicon_of([path])),
        "lexicon_of a group": ((".txt",), lambda path: lexicon_of({"a": Path(path)})),
        "image": (("", ".png"), image.encode),
        "images": (("",), image.labelled),
        "sound": (("", ".wav"), lambda path: sound.encode_source(path, truncate=True)),
        "digit": (("", ".png", ".npy"), digit_graph),
        "mnist": (("",), lambda path: mnist.read("test", path)),
        "bace": (("",), lambda path: bace("test", path)),
        "sst2": (("",), lambda path: dataset("sst2").read("test", path)),
        "tagger": (("",), tagger_of),
    }
    (tmp_path / "folder").mkdir()
    made = {
        "folder": lambda path: path.mkdir(),
        "pipe": os.mkfifo,
        "loop": lambda path: path.symlink_to(path),
        "device": lambda path: path.symlink_to("/dev/zero"),
        "memory": lambda path: path.symlink_to("/proc/self/mem"),
        "kernel": lambda path: path.symlink_to("/proc/version"),
        "nothing": lambda path: path.symlink_to(tmp_path / "none"),
    }
    cases: dict[str, Callable[[], Any]] = {}
    for number in range(times(80)):
        reader, (endings, read) = rng.choice(list(readers.items()))
        ending = rng.choice(endings)
        kind = rng.choice([*made, *made, *_NAMES, "hostile"])
        if kind in made:
            given = str(tmp_path / f"{number}{ending}")
            made[kind](Path(given))
        else:
            given = (hostile_text(rng, surrogates=True) if kind == "hostile" else _NAMES[kind]) + ending
        cases[f"{number} {reader} {kind} {given!r:.100}"] = partial(read, given)
    report(cases)


_NAMES = {
    "long": "x" * 300,
    "long path": "x/" * 5000,
    "NUL": "a\x00b",
    "surrogate": "\udc80",
    "no user": "~nouser/x",
    "memory itself": "/proc/self/mem",
    "device itself": "/dev/zero",
    "root": "/",
    "here": ".",
    "empty": "",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models in folders, and one in a GGUF file."""
    return hostile_models.written(tmp_path_factory.mktemp("models"))


def used(given: Path) -> None:
    """Load a model, and explain something with it."""
    hostile_models.explained(conserva.load(given))


def test_files_of_models(models: dict[str, Path], tmp_path: Path) -> None:
    rng = rng_of("files of models")
    targets = [
        (kind, str(path.relative_to(folder)))
        for kind, folder in models.items()
        for path in sorted(folder.rglob("*.*"))
        for _ in range(4 if path.name == "config.json" else 2 if path.name == "tokenizer_config.json" else 1)
    ]
    cases: dict[str, Callable[[], Any]] = {}
    for number in range(times(64)):
        kind, name = rng.choice(targets)
        content = (models[kind] / name).read_bytes()
        others = [(models[other] / another).read_bytes() for other, another in rng.sample(targets, 2)]
        how, changed = (mutated_json if name.endswith(".json") else mutated)(rng, content, others)

        def case(
            folder: Path = tmp_path / str(number), kind: str = kind, name: str = name, changed: bytes = changed
        ) -> None:
            shutil.copytree(models[kind], folder)
            (folder / name).write_bytes(changed)
            try:
                used(folder)
            finally:
                shutil.rmtree(folder)

        cases[f"{number} {kind}/{name}: {how}"] = case
    report(cases)


def test_gguf(models: dict[str, Path], tmp_path: Path) -> None:
    attacked(tmp_path, 24, {"a.gguf": (models["gguf"].read_bytes(), mutated, used)})
    rng = rng_of("numbers of a gguf file")
    sizes = ["block_count", "context_length", "embedding_length", "feed_forward_length", "head_count", "head_count_kv"]
    cases: dict[str, Callable[[], Any]] = {}
    for number in range(times(12)):
        changes = {
            rng.choice([*sizes, "vocab_size", "rope_dimension_count"]): rng.choice([0, 3, 10**5, 2**31, 2**32 - 1])
        }
        path = hostile_models.gguf_file(tmp_path / f"{number}.gguf", **changes)
        cases[f"{number} {changes}"] = partial(used, path)
    report(cases)


def test_code_in_files_of_models(models: dict[str, Path], tmp_path: Path) -> None:
    """Pickles and programs lie in every place where transformers may look for them: none runs."""
    rng = rng_of("code in files of models")
    control = hostile_models.planted(tmp_path / "control", tmp_path / "ran")
    pickle.loads((control / "pytorch_model.bin").read_bytes())
    assert (tmp_path / "ran").is_dir(), "what is planted would not run"
    cases: dict[str, Callable[[], Any]] = {}
    for number in range(times(40)):
        kind = rng.choice([kind for kind, path in models.items() if path.is_dir()])
        changes = rng.sample(list(hostile_models.TRAPS), rng.choice([1, 1, 2, 3]))

        def case(kind: str = kind, changes: list[str] = changes, number: int = number) -> None:
            folder, canary = tmp_path / str(number), tmp_path / f"ran-{number}"
            shutil.copytree(models[kind], folder)
            hostile_models.planted(folder, canary)
            for change in changes:
                hostile_models.TRAPS[change](folder)
            try:
                used(folder)
            finally:
                shutil.rmtree(folder)
                assert not canary.exists(), "code ran"

        cases[f"{number} {kind} {changes}"] = case
    report(cases)


def test_whole_files_are_read(models: dict[str, Path], tmp_path: Path) -> None:
    """What the attacks start from works."""
    for path in models.values():
        used(path)
