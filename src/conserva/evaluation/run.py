"""From a task, data and methods to an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from .._util.files import check_folder
from .._util.versions import versions
from ..attribution import Method, MethodLike, find, methods
from ..errors import Error, NotApplicable
from ..tasks.batches import budget, by_length
from ..tasks.fingerprint import hash_of, identity_of
from ..tasks.output_heads import BINARY, REGRESSION
from ..tasks.task import Task
from .journal import SampleJournal
from .measure import LEAVE_ONE_OUT, attributions, clean_logits, curves, leave_one_out
from .protocol import ERASER_PERCENT, Protocol, protocol_of
from .result import Evaluation
from .samples import Sample, Samples
from .statistics import RESAMPLES
from .stream import Stream
from .summary import summarise

LINES = 3
"""Which form the lines of a journal have: a run whose lines have another is not gone on with."""


def evaluate(
    task: Task,
    data: Any,
    methods: Sequence[MethodLike] | None = None,
    *,
    protocol: str = "default",
    watch: str | None = None,
    mask: str | None = None,
    steps: int | str | None = None,
    count: int | None = None,
    seed: int = 0,
    random_seeds: int = 5,
    reference: bool = True,
    truncate: bool = False,
    out: str | Path | None = None,
    batch_tokens: int | None = None,
    tokens: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure how faithful methods are to a model, on the same samples.

    Parameters
    ----------
    task
        What `conserva.load` returned, or `conserva.Text(model, tokenizer)`, or `conserva.Graph(model)`.
    data
        A file (.csv, .tsv, .jsonl, .json, .parquet) or dataset name, a list of texts, or of (text, label). Pairs of
        texts are ((text, text), label), or ((text, text), None) without labels. For graphs a file with a column of
        SMILES, a list of graphs, or of (graph, label).
    methods
        Names as in `conserva.methods()`, options included, or rule sets of your own; None for all.
    protocol
        "default": special tokens stay, the predicted class is watched. "paper": as Ali et al. (2022) ran it, special
        tokens go like others, the true class is watched. The virtual node of a graph stays under both.
    watch
        The class whose probability is watched, "predicted" or "true"; None for the protocol's.
    mask
        What stands for tokens that are taken away: "unk", "mask", "pad", or "drop" to hide them from attention. None
        for the protocol's choice: the mask token (or "drop") by default, the unknown token in the paper. For nodes of a
        graph "token" (or None), where nothing looks at them, "induced", where they are deleted, or "blank", where they
        stay and say nothing. For patches of an image "mean" (or None), its mean colour, or "grey".
    steps
        In how many steps features go or come, or "each" for one at a time; None for the protocol's 10.
    count
        How many samples are drawn from the data; None for all.
    seed
        Decides the draw and the bootstrap.
    random_seeds
        How many random orders `random` is averaged over.
    reference
        Whether yardsticks are measured too: leave-one-out, which asks the model itself, and for superpixels and the
        patches of grey images the order of their intensity, which needs no model.
    truncate
        Whether texts longer than the model takes are cut; otherwise they are refused.
    out
        A folder for what is done so far: a run that was stopped goes on there.
    batch_tokens
        How many features are explained at once, as in `conserva.explain`.
    tokens
        How many features a batch of masked inputs has; it shrinks by itself when memory runs out.
    progress
        Called with the number of samples done, and of all.

    Returns
    -------
    Evaluation
        AUAC, AU-MSE and other areas for each method, with intervals, and the differences between methods.

    Examples
    --------
    >>> texts = ["a gorgeous, witty, seductive movie.", "how dull."]
    >>> found = conserva.evaluate(conserva.load(), texts, ["gi", "exact"], reference=False)
    >>> [result.method for result in found.methods]
    ['gi', 'exact']
    """
    if not isinstance(task, Task):
        raise Error(f"task={task!r} is not a task: use conserva.load(...), conserva.Text(...) or conserva.Graph(...).")
    if seed < 0:
        raise Error(f"seed={seed} is below 0: give 0 or more.")
    explained_at_once = budget(batch_tokens, task.model)
    whole = task.labelled(data)
    data_taken = whole.take(count, seed)
    found_protocol = protocol_of(protocol, watch, data_taken.labels is not None, steps)
    mask = task.mask(mask, found_protocol.masks)
    if mask == "drop" and found_protocol.special:
        raise Error("mask='drop' with protocol='paper' would hide every token: choose another mask or protocol.")
    chosen = _chosen(methods, random_seeds)
    classes = _classes(task)
    stream = Stream(task, tokens)
    if out is not None:
        check_folder(Path(out), f"out={str(out)!r}")
    samples = Samples(task, data_taken, classes, truncate)
    installed = versions("tokenizers")
    model = identity_of(task)
    settings = {
        "lines": LINES,
        "protocol": _shown(found_protocol),
        "mask": mask,
        "truncate": truncate,
        "methods": {one.name: dict(one.options) for one in chosen},
        "reference": reference,
        "data": samples.fingerprint,
        "model": model,
        "versions": {name: one for name, one in installed.items() if name != "python"},
    }
    journal = SampleJournal(None if out is None else Path(out), settings, len(samples))
    right = 0

    def records() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        nonlocal right
        for number in range(len(samples)):
            scores = journal.scores(number)
            right += scores["label"] == scores["predicted"]
            yield scores, journal.curves(number)

    try:
        run = _Run(task, found_protocol, mask, chosen, reference, journal, stream)
        run.all(samples, explained_at_once, progress)
        results, pairs = summarise(records(), found_protocol, seed)
    finally:
        journal.close()
    return Evaluation(
        methods=results,
        pairs=pairs,
        protocol={**_shown(found_protocol), "mask": mask, "eraser_percent": list(ERASER_PERCENT)},
        samples=len(samples),
        accuracy=None if samples.labels is None else right / len(samples),
        model=task.name,
        data=whole.source,
        refused=dict(run.refused),
        provenance={
            **installed,
            "weights": model["weights"],
            "configuration": hash_of(model["configuration"]),
            **{name: model[name] for name in task.preprocessors},
            "head": task.head.name,
            "data": samples.fingerprint,
            "seed": seed,
            "random_seeds": random_seeds,
            "resamples": RESAMPLES,
            "dtype": str(next(task.model.parameters()).dtype).removeprefix("torch."),
            "methods": {one.name: dict(one.options) for one in chosen},
        },
    )


def _shown(protocol: Protocol) -> dict[str, Any]:
    return {key: value for key, value in asdict(protocol).items() if key != "masks"}


def _chosen(names: Sequence[MethodLike] | None, random_seeds: int) -> list[Method]:
    """Return the methods that were named, `random` once for each seed."""
    if random_seeds < 1:
        raise Error(f"random_seeds={random_seeds}: random needs one or more.")
    wanted: list[MethodLike] = [*methods()] if names is None else list(names)
    if not wanted:
        raise Error("methods=[] names none: give some of conserva.methods(), or None for all.")
    expanded = [
        each
        for name in wanted
        for each in ([f"random:seed={seed}" for seed in range(random_seeds)] if name == "random" else [name])
    ]
    found = {one.name: one for one in map(find, expanded)}
    return list(found.values())


def _classes(task: Task) -> int:
    classes = task.classes
    if task.head is REGRESSION:
        raise Error(
            f"{task.name} has a regression head: its output is a number and has no probability, which the curves are "
            "made of. If its logits are classes, say so with head=, as in conserva.load(..., head='multi_label')."
        )
    if task.head is BINARY:
        raise Error(
            f"{task.name} has one logit, for one class or against it: curves need the probability of one class among "
            "several. With head='ordinal' a text classifier's one logit is read as two classes."
        )
    if classes < 2:
        raise Error(f"{task.name} has {classes} class(es): curves need the probability of one among several.")
    return classes


class _Run:
    """The work of an evaluation, in parts that are the same whether it runs at once or goes on after a stop."""

    def __init__(
        self,
        task: Task,
        protocol: Protocol,
        mask: str,
        chosen: Sequence[Method],
        reference: bool,
        journal: SampleJournal,
        stream: Stream,
    ) -> None:
        self.task, self.protocol, self.mask = task, protocol, mask
        self.chosen, self.reference = list(chosen), reference
        self.journal, self.stream = journal, stream
        self.controls: frozenset[str] = frozenset()
        self.refused = dict(journal.refused)

    def all(self, samples: Samples, tokens: int, progress: Callable[[int, int], None] | None) -> None:
        """Measure all samples, those of equal length together."""
        if self.reference:
            self.controls = samples.controls
        done = self.journal.done
        if progress is not None:
            progress(done, len(samples))
        for numbers in by_length(samples.lengths, tokens):
            if all(map(self.journal.is_done, numbers)):
                continue
            batch = samples.some(numbers)
            if not all(map(self.journal.has_scores, numbers)):
                self._score(batch)
            for part in self._parts(batch):
                if all(self.journal.has_curves(one.number) for one in part):
                    continue
                known = [self.journal.scores(one.number) for one in part]
                found = curves(self.task, self.stream, part, known, self.protocol, self.mask)
                for one, points in zip(part, found, strict=True):
                    if not self.journal.has_curves(one.number):
                        self.journal.add(one.number, {"methods": points})
                        done += 1
                if progress is not None:
                    progress(done, len(samples))

    def _score(self, batch: Sequence[Sample]) -> None:
        """Explain a batch by every method that applies."""
        logits = clean_logits(self.task, self.stream, batch, self.mask)
        labels = [one.label for one in batch]
        wanted = labels if self.protocol.target == "true" else logits.argmax(-1).tolist()
        targets = [int(one) for one in wanted if one is not None]
        numbers = [float(row[target]) for row, target in zip(logits, targets, strict=True)]
        scores: dict[str, list[np.ndarray]] = {}
        for method in self.chosen:
            if method.name in self.refused:
                continue
            try:
                scores[method.name], _ = attributions(self.task, method, batch, targets)
            except NotApplicable as reason:
                if self.journal.has_any_scores:
                    raise Error(f"{method.name} applied to other samples, but here: {reason}") from None
                self.refused[method.name] = str(reason)
        if not scores:
            raise Error(f"No method applies to {self.task.name}: {next(iter(self.refused.values()))}")
        if self.reference:
            scores[LEAVE_ONE_OUT] = leave_one_out(
                self.task, self.stream, batch, self.protocol, self.mask, targets, numbers
            )
        controls = [
            {name: each for name, each in one.encoded.controls().items() if name in self.controls} for one in batch
        ]
        for i, one in enumerate(batch):
            if not self.journal.has_scores(one.number):
                every = {**{name: each[i] for name, each in scores.items()}, **controls[i]}
                self.journal.add(
                    one.number,
                    {
                        "text": one.encoded.text,
                        "label": one.label,
                        "target": targets[i],
                        "output": numbers[i],
                        "predicted": int(logits[i].argmax()),
                        "scores": {name: each.tolist() for name, each in every.items()},
                        "controls": list(controls[i]),
                        "refused": self.refused,
                    },
                )

    def _parts(self, batch: Sequence[Sample]) -> Iterator[list[Sample]]:
        """Yield samples whose rows together fill a batch of the stream; the same ones in every run."""
        methods = len(self.chosen) + self.reference
        part: list[Sample] = []
        size = 0
        for one in batch:
            part.append(one)
            steps = self.protocol.steps or len(one.encoded)
            size += methods * (2 * (steps + 1) + 2 * len(ERASER_PERCENT)) * len(one.encoded)
            if size >= self.stream.tokens:
                yield part
                part, size = [], 0
        if part:
            yield part
