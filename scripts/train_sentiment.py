"""Train the small film-review sentiment classifier that the examples and tests explain.

``prepare`` packs texts and teacher into one folder (CPU, needs pyarrow), ``train`` fine-tunes the teacher and distils
the student from it (one GPU, no network), ``evaluate`` measures a saved model (CPU, needs pyarrow).

Texts are kept as *words*, what BERT's pre-tokeniser yields. Teacher and student cut the same words into different
pieces, so one batch of words feeds both, can be altered word by word, and lets hidden states be compared.
"""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

PHRASES, SENTENCES, REVIEWS = "sst2/sst2_glue.parquet", "sst2/sst2_sentences.parquet", "imdb/imdb.parquet"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
EMPTY, UNKNOWN = 0, 1  # word numbers: no word at all (padding, deletion) and a word outside the table
MOST_WORDS, MOST_PIECES = 65536, 8  # numbers fit 16 bits; what a word has beyond 8 pieces is dropped, in training only
LONGEST, SENTENCE, WINDOW = 512, 64, 480  # at most: pieces of a text; words of a review sentence, of a longer stretch
Labelled = tuple[list[str], list[int]]
Batches = Iterator[tuple[Tensor, np.ndarray | None]]  # words, and labels where they are to be used


def read_table(path: Path, split: str) -> Labelled:
    """Return texts and labels of one split of a parquet file, brackets as in GLUE and line breaks undone."""
    from pyarrow import parquet  # imported here because training does without it

    rows = [row for row in parquet.read_table(path).to_pylist() if row["split"] == split]
    texts = [row["text"].replace("-lrb-", "(").replace("-rrb-", ")").replace("<br />", "\n") for row in rows]
    return texts, [row["label"] for row in rows]


def bare(text: str) -> str:
    """Return a text's letters and digits, to find repeats whatever their case, spaces and punctuation."""
    return re.sub(r"[\W_]+", "", text.lower())


def review_sentences(review: str) -> list[str]:
    """Split a review into sentences, its old Windows punctuation set right."""
    windows = {code: bytes([code]).decode("cp1252", "ignore") for code in range(0x80, 0xA0)}
    return [s for s in re.split(r"(?<=[.!?])\s+|(?<=[.!?][\"')])\s+|\n", review.translate(windows)) if bare(s)]


def measured_texts(data: Path, imdb: int = 0) -> dict[str, Labelled]:
    """Return SST-2's dev and test sentences, and some of IMDB's test reviews if asked for."""
    measured = {"dev": read_table(data / PHRASES, "dev"), "test": read_table(data / SENTENCES, "test")}
    if imdb:  # sorted by class, so that every n-th review is a fair sample
        measured["IMDB test"] = tuple(part[:: len(part) // imdb] for part in read_table(data / REVIEWS, "test"))
    return measured


def training_phrases(data: Path, barred: set[str], rng: np.random.Generator) -> list[Any]:
    """Return training and held-out phrases (2 %): all longer ones of a sentence together, because they overlap."""
    rows = zip(*read_table(data / PHRASES, "train"), strict=True)
    kept = [(text, label) for text, label in rows if bare(text) and bare(text) not in barred]
    sentences = [bare(text) for text in read_table(data / SENTENCES, "train")[0]]
    longer = [(number, bare(text)) for number, (text, _) in enumerate(kept) if len(text.split()) >= 3]
    held: set[int] = set()
    for index in rng.permutation(len(sentences)):
        if len(held) < 0.02 * len(kept):
            held.update(number for number, text in longer if text in sentences[index])
    return [tuple(zip(*[r for n, r in enumerate(kept) if (n in held) is out], strict=True)) for out in (False, True)]


def training_reviews(data: Path, barred: set[str]) -> tuple[list[list[str]], list[int]]:
    """Return IMDB's distinct training reviews that are not in its test set, as sentences, with labels."""
    known = {bare(text) for text in read_table(data / REVIEWS, "test")[0]}
    texts, labels = read_table(data / REVIEWS, "train")
    kept = [number for text, number in {bare(t): n for n, t in enumerate(texts)}.items() if text not in known]
    return [[s for s in review_sentences(texts[n]) if bare(s) not in barred] for n in kept], [labels[n] for n in kept]


def choose_pieces(tokenizer: Tokenizer, phrase: Counter[str], review: Counter[str], size: int) -> list[str]:
    """Return the student's vocabulary: special tokens, characters in use, then the most frequent pieces."""
    score: Counter[str] = Counter()
    for word in phrase | review:
        for token in tokenizer.model.tokenize(word):
            score[token.value] += 10 * phrase[word] + review[word]  # the reviews have ten times as many words
    seen, vocabulary = {letter for word in phrase | review for letter in word}, tokenizer.get_vocab()
    letters = [p for p in vocabulary if len(p.removeprefix("##")) == 1 and (p[-1].isascii() or p[-1] in seen)]
    chosen = list(dict.fromkeys([*SPECIAL, *letters, *(piece for piece, _ in score.most_common())]))[:size]
    return sorted(chosen, key=vocabulary.__getitem__)


def write_tokenizer(source: Path, folder: Path, pieces: Sequence[str] = ()) -> Tokenizer:
    """Write a tokenizer like the source's, with only some of its pieces if they are given."""
    content = json.loads((source / "tokenizer.json").read_text("utf-8"))
    if pieces:
        content["model"]["vocab"] = number = {piece: index for index, piece in enumerate(pieces)}
        for token in content["added_tokens"]:
            token["id"] = number[token["content"]]
        for name, entry in content["post_processor"]["special_tokens"].items():
            entry["ids"] = [number[name]]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), "utf-8")
    (folder / "tokenizer_config.json").write_bytes((source / "tokenizer_config.json").read_bytes())
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def piece_table(tokenizer: Tokenizer, words: Sequence[str]) -> np.ndarray:
    """Return the piece numbers of every word, zeros after the last; the words begin at row 2."""
    found = [[], [tokenizer.token_to_id("[UNK]")], *([t.id for t in tokenizer.model.tokenize(word)] for word in words)]
    return np.array([(row + MOST_PIECES * [0])[:MOST_PIECES] for row in found], np.uint16)


def prepare(data: Path, teacher: Path, out: Path, vocabulary: int, seed: int) -> None:
    """Write everything the training needs into one folder."""
    torch.manual_seed(seed)
    measured = measured_texts(data)
    barred = {bare(text) for texts, _ in measured.values() for text in texts}
    (phrases, labels), held = training_phrases(data, barred, np.random.default_rng(seed))
    reviews, review_labels = training_reviews(data, barred)
    source = data / "bert_base_uncased_tokenizer"  # the teacher's, without its settings for padding and truncation
    tokenizer = write_tokenizer(source, out / "teacher")
    clean, cut = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str
    words = [[w for w, _ in cut(clean(text))] for text in (*phrases, *(s for review in reviews for s in review))]
    parts = words[: len(phrases)], words[len(phrases) :]
    in_phrases, in_reviews = (Counter(w for text in part for w in text) for part in parts)
    known = list(dict.fromkeys([*in_phrases, *(w for w, _ in in_reviews.most_common())]))[: MOST_WORDS - 2]
    known.sort(key=lambda w: -in_phrases[w] - in_reviews[w])
    pieces = choose_pieces(tokenizer, in_phrases, in_reviews, vocabulary)
    number = {word: index for index, word in enumerate(known, 2)}
    np.savez_compressed(
        out / "corpus.npz",
        words=np.array([number.get(w, UNKNOWN) for text in words for w in text], np.uint16),
        lengths=np.array([len(text) for text in words], np.uint16),
        labels=np.array(labels, np.uint8),
        review_sizes=np.array([len(review) for review in reviews], np.uint16),
        review_labels=np.array(review_labels, np.uint8),
        teacher=piece_table(tokenizer, known),
        student=piece_table(write_tokenizer(source, out / "student", pieces), known),
        kept=np.array([tokenizer.token_to_id(piece) for piece in pieces], np.uint16),
    )
    (out / "measured.json").write_text(json.dumps({**measured, "held-out": held}), "utf-8")
    BertForSequenceClassification.from_pretrained(teacher, num_labels=2).half().save_pretrained(out / "teacher")
    print(f"phrases {len(phrases)}, held out {len(held[0])}, reviews {len(reviews)}, sentences {len(parts[1])}")


class Corpus:
    """The training texts on the training device: one long row of word numbers, and where each text lies in it."""

    def __init__(self, file: Path, device: torch.device, seed: int) -> None:
        """Load the packed texts."""
        self.rng, self.device = np.random.default_rng(seed), device
        packed = {name: array.astype(np.int64) for name, array in np.load(file).items()}
        self.send = partial(torch.as_tensor, dtype=torch.long, device=device)
        self.labels, self.review_labels, self.kept = packed["labels"], packed["review_labels"], packed["kept"]
        lengths, count = packed["lengths"], len(self.labels)
        edges = np.append(0, np.cumsum(lengths))
        self.starts, self.lengths = edges[:-1], np.minimum(lengths, SENTENCE)
        self.phrases, self.sentences = np.arange(count), np.arange(count, len(lengths))
        borders = edges[count + np.append(0, np.cumsum(packed["review_sizes"]))]
        self.reviews = borders[:-1], np.diff(borders)
        self.words, self.tables = self.send(packed["words"]), {k: self.send(packed[k]) for k in ("teacher", "student")}
        self.ends = {"teacher": (int(self.kept[2]), int(self.kept[3])), "student": (2, 3)}  # [CLS], [SEP]

    def batches(self, texts: np.ndarray, size: int) -> Iterator[tuple[Tensor, np.ndarray]]:
        """Yield words and numbers of texts for ever, in random order but with texts of like length together."""
        while True:
            groups = np.array_split(self.rng.permutation(texts), 1 + len(texts) // (32 * size))
            groups = [group[np.argsort(self.lengths[group], kind="stable")] for group in groups]
            parts = [group[i : i + size] for group in groups for i in range(0, len(group), size)]
            for chosen in (parts[i] for i in self.rng.permutation(len(parts))):
                yield self.gather(self.starts[chosen], self.lengths[chosen]), chosen

    def gather(self, starts: np.ndarray, lengths: np.ndarray) -> Tensor:
        """Return the words of some spans, one span a row, the empty word after its end."""
        places = torch.arange(int(lengths.max()), device=self.device)[None]
        rows = self.words[(self.send(starts)[:, None] + places).clamp(max=len(self.words) - 1)]
        return torch.where(places < self.send(lengths)[:, None], rows, EMPTY)

    def windows(self, count: int, length: int, inside: bool) -> tuple[Tensor, np.ndarray]:
        """Return random stretches of reviews and the reviews' labels; not inside: they may run into the next."""
        chosen = self.rng.integers(0, len(self.review_labels), count)
        starts, sizes = (part[chosen] for part in self.reviews)
        shift = self.rng.integers(0, np.maximum(sizes - (length if inside else 1), 0), endpoint=True)
        shift[self.rng.random(count) < 0.5] = 0  # half of them begin where a review begins
        room = sizes - shift if inside else len(self.words) - starts - shift
        return self.gather(starts + shift, np.minimum(room, length)), self.review_labels[chosen]

    def assemble(self, reader: str, words: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return a model's input for words, the place of every word's first piece in it, and whether it is there."""
        pieces = self.tables[reader][words]
        filled = pieces > 0
        after = filled.sum(-1).cumsum(1) + 1  # place 0 is the start token's
        first = after - filled.sum(-1)
        width = min(-(-(int(after[:, -1].max()) + 1) // 8) * 8, LONGEST)  # multiples of 8 are fast
        places = first[:, :, None] + torch.arange(MOST_PIECES, device=self.device)
        places = places.masked_fill(~filled | (places >= width - 1), width)  # a spare column takes what does not fit
        ids = words.new_zeros(len(words), width + 1).scatter_(1, places.flatten(1), pieces.flatten(1))[:, :width]
        last = after[:, -1:].clamp(max=width - 1)
        ids[:, 0] = self.ends[reader][0]
        ids.scatter_(1, last, self.ends[reader][1])
        mask = (torch.arange(width, device=self.device) <= last).long()
        there = (words != EMPTY) & (first < width - 1)
        return {"input_ids": ids, "attention_mask": mask}, first.clamp(max=width - 1), there

    def neighbours(self, embedding: Tensor, frequent: int) -> Tensor:
        """Return for every word the 16 closest of the frequent (lowest) words in the teacher's embedding."""
        means = F.embedding_bag(self.tables["teacher"], embedding, mode="mean", padding_idx=0)
        vectors = F.normalize(means - means.mean(0))
        return torch.cat([(part @ vectors[2 : frequent + 2].T).topk(16).indices + 2 for part in vectors.split(4096)])

    def alter(self, words: Tensor, near: Tensor) -> Tensor:
        """Keep only a part of some rows, replace or delete words in some: the teacher will judge what results."""
        length, device = (words != EMPTY).sum(1, keepdim=True), self.device
        cut, share, shift, rate = torch.rand(len(words), 4, 1, device=device).unbind(1)
        size = torch.where(cut < 0.25, (share * length).ceil(), length)
        place = torch.arange(words.shape[1], device=device) - (shift * (length - size + 1)).floor()
        words = torch.where((place >= 0) & (place < size), words, EMPTY)
        hit, draw = torch.rand(2, *words.shape, device=device)
        similar = near[words, torch.randint(near.shape[1], words.shape, device=device)]
        random = self.words[torch.randint(len(self.words), words.shape, device=device)]
        fresh = torch.where(draw < 0.7, similar, torch.where(draw < 0.85, random, EMPTY))
        return torch.where((hit < 0.6 * rate - 0.3) & (words != EMPTY), fresh, words)  # half of the rows stay


def teacher_losses(teacher: nn.Module, corpus: Corpus, size: int) -> Iterator[Tensor]:
    """Yield the teacher's loss on labelled phrases and, one time in eight, on labelled stretches of reviews."""
    for words, chosen in corpus.batches(corpus.phrases, size):
        labels = corpus.labels[chosen]
        if corpus.rng.random() < 0.125:
            words, labels = corpus.windows(1 + size // 5, int(corpus.rng.integers(32, 384)), inside=True)
        yield F.cross_entropy(teacher(**corpus.assemble("teacher", words)[0]).logits.float(), corpus.send(labels))


def mixed_batches(corpus: Corpus, near: Tensor, shrink: int) -> Batches:
    """Yield the student's words: phrases, some of them with labels, review sentences and long stretches."""
    phrases, sentences = corpus.batches(corpus.phrases, 1024 // shrink), corpus.batches(corpus.sentences, 768 // shrink)
    while True:
        kind = corpus.rng.random()
        if kind < 0.15:  # half of these run from review to review, to reach the last positions often enough
            length = int(corpus.rng.integers(48, WINDOW, endpoint=True))
            yield corpus.windows(1 + 24576 // shrink // length, length, kind < 0.075)[0], None
        else:
            words, chosen = next(phrases if kind < 0.65 else sentences)
            yield (words, corpus.labels[chosen]) if kind < 0.3 else (corpus.alter(words, near), None)


def student_losses(student: Any, teacher: nn.Module, corpus: Corpus, stream: Batches, steps: int) -> Iterator[Tensor]:
    """Yield the loss against the teacher's answers, labels and, at first, the teacher's hidden states at words."""
    for step, (words, labels) in enumerate(stream):
        given, first, there = corpus.assemble("student", words)
        wide_given, wide_first, wide_there = corpus.assemble("teacher", words)
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            truth = teacher(**wide_given, output_hidden_states=True)
        guess = student(**given, output_hidden_states=True)
        soft, logits = F.log_softmax(truth.logits.float() / 2, -1), guess.logits.float()
        total = 4 * F.kl_div(F.log_softmax(logits / 2, -1), soft, log_target=True, reduction="batchmean")
        if labels is not None:
            total = total + 0.3 * F.cross_entropy(logits, corpus.send(labels))
        rows, weight = torch.arange(len(words), device=words.device)[:, None], (there & wide_there).float()
        for number, bridge in enumerate(student.bridges if step < 0.7 * steps else (), 1):  # middle and end of both
            low, high = (x.hidden_states[number * (len(x.hidden_states) - 1) // 2] for x in (guess, truth))
            aim = F.layer_norm(high[rows, wide_first].float(), high.shape[-1:])
            error = (bridge(low[rows, first]).float() - aim).square().mean(-1)
            total = total + (1 - step / (0.7 * steps)) * (error * weight).sum() / weight.sum()
        yield total


def new_student(teacher: nn.Module, kept: np.ndarray, width: int, layers: int) -> BertForSequenceClassification:
    """Return an untrained student whose embeddings are the teacher's, projected on their main directions."""
    names = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "max_position_embeddings": LONGEST}
    sizes |= {"vocab_size": len(kept), "num_hidden_layers": layers, "num_attention_heads": 4}
    student = BertForSequenceClassification(BertConfig(**sizes, **names))
    student.bridges = nn.ModuleList(nn.Linear(width, teacher.config.hidden_size) for _ in range(2))  # to compare states
    old, new = ({k: v.cpu() for k, v in m.bert.embeddings.state_dict().items()} for m in (teacher, student))
    old["word_embeddings.weight"] = old["word_embeddings.weight"][kept]
    basis = torch.linalg.svd(old["word_embeddings.weight"], full_matrices=False).Vh[:width].T
    for name in ("word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight"):
        new[name].copy_(old[name] @ basis)
    return student


@torch.no_grad()
def accuracy(model: nn.Module, tokenizer: Any, measured: dict[str, Labelled], title: str) -> dict[str, float]:
    """Print and return for each set the share of texts classified as labelled."""
    shares, read = {}, partial(tokenizer, padding=True, truncation=True, return_tensors="pt")
    for name, (texts, labels) in measured.items():
        inputs = (read(texts[i : i + 64]).to(model.device) for i in range(0, len(texts), 64))
        guesses = torch.cat([model.eval()(**batch).logits.argmax(-1).cpu() for batch in inputs])
        shares[name] = (guesses == torch.tensor(labels)).double().mean().item()
    print(f"{title}:", ", ".join(f"{name} {share:.4f}" for name, share in shares.items()), flush=True)
    return shares


def fit(name: str, model: nn.Module, losses: Iterator[Tensor], score: Callable[[str], dict[str, float]],
        steps: int, rate: float, minutes: float) -> dict[str, Any]:  # fmt: skip
    """Train a model, in fewer steps if time is short, and leave it at the check with the best held-out accuracy."""
    cuda, parameters, checks = model.device.type == "cuda", list(model.parameters()), 10
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01, fused=cuda)
    begin, step, done, best, state = time.time(), 0, 0.0, {"held-out": -1.0}, model.state_dict()
    while done < 1:
        model.train()
        optimizer.param_groups[0]["lr"] = rate * min(1.0, 20 * (step + 1) / steps) * (1 - done)
        with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
            loss = next(losses)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        before, done = done, min(1.0, max(step / steps, (time.time() - begin) / (60 * minutes)))
        if int(before * checks) < int(done * checks):
            scores = score(f"{name} {step}/{steps}, {time.time() - begin:.0f} s, loss {loss.item():.4f}")
            if scores["held-out"] >= best["held-out"]:
                best, state = scores, {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(state)
    return {f"{name}_{key}": value for key, value in {"steps": f"{step} of {steps} steps", **best}.items()}


CARD = (Path(__file__).parent / "sentiment_card.md").read_text("utf-8")


def train(work: Path, out: Path, seed: int, width: int, layers: int, steps: int, minutes: int, quick: bool) -> None:
    """Fine-tune the teacher, distil the student, write the model folder with its card."""
    torch.manual_seed(seed)
    torch.set_num_threads(1 if quick else torch.get_num_threads())
    shrink, short, steps = (64, 2, 9) if quick else (1, 2400, steps)  # 2,400: four times through the phrases
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    corpus, folder = Corpus(work / "corpus.npz", device, seed), out / "sentiment"
    measured = json.loads((work / "measured.json").read_text("utf-8"))
    measured = {key: (texts[::shrink], labels[::shrink]) for key, (texts, labels) in measured.items()}
    teacher = BertForSequenceClassification.from_pretrained(work / "teacher", dtype=torch.float32).to(device)
    near = corpus.neighbours(teacher.bert.embeddings.word_embeddings.weight.detach(), 20000 // shrink)
    score = partial(accuracy, teacher, AutoTokenizer.from_pretrained(work / "teacher"), measured)
    values = fit("teacher", teacher, teacher_losses(teacher, corpus, 128 // shrink), score, short, 1e-4, minutes / 3)
    student = new_student(teacher, corpus.kept, width, layers).to(device)
    teacher.eval().requires_grad_(False).to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    score = partial(accuracy, student, AutoTokenizer.from_pretrained(work / "student"), measured)
    losses = student_losses(student, teacher, corpus, mixed_batches(corpus, near, shrink), steps)
    values |= fit("student", student, losses, score, steps, 1e-3, minutes)
    del student.bridges
    pieces = student.bert.embeddings.word_embeddings.weight
    with torch.no_grad():  # unknown characters stood for rare words, mostly names, and were taken for praise
        pieces[SPECIAL.index("[UNK]")] = pieces[len(SPECIAL) :].mean(0)
    student.cpu().half().save_pretrained(folder)
    write_tokenizer(work / "student", folder)
    values |= evaluate(folder, {key: measured[key] for key in ("dev", "test")})
    values["size"] = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    card = CARD.format(student.config, corpus, seed=seed, parameters=student.num_parameters() / 1e6, **values)
    (folder / "README.md").write_text(card, "utf-8")


def evaluate(folder: Path, measured: dict[str, Labelled]) -> dict[str, float]:
    """Measure a saved model, loaded as 32-bit floats on CPU."""
    model = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    return accuracy(model, AutoTokenizer.from_pretrained(folder), measured, "saved model")


def main() -> None:
    """Read the command line and run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("prepare", "train", "evaluate"))
    folders = {name: Path(name) for name in ("data", "teacher", "work", "model", "out")}
    # minutes: the student's, a third as many for the teacher, at most; imdb: how many IMDB test reviews to evaluate too
    numbers = {"seed": 0, "vocabulary": 12000, "width": 192, "layers": 4, "steps": 9000, "minutes": 6, "imdb": 0}
    for name, default in {**folders, **numbers}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--quick", action="store_true", help="train a few steps, to try the whole path")
    a = parser.parse_args()
    if a.command == "prepare":
        prepare(a.data, a.teacher, a.out, a.vocabulary, a.seed)
    elif a.command == "train":
        train(a.work, a.out, a.seed, a.width, a.layers, a.steps, a.minutes, a.quick)
    else:
        evaluate(a.model, measured_texts(a.data, a.imdb))


if __name__ == "__main__":
    main()
