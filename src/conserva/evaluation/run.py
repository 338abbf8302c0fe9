"""`conserva.evaluate`: score and mask the samples, and summarise the curves of every method."""

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
from ..tasks.task import Task, require_task
from .additional import Additional
from .journal import SampleJournal
from .measure import LEAVE_ONE_OUT, attributions, clean_logits, curves, leave_one_out
from .protocol import ERASER_PERCENT, Protocol, protocol_of
from .result import Evaluation
from .samples import Sample, Samples
from .statistics import RESAMPLES
from .stream import Stream
from .summary import summarise

LINES = 3
"""The version of the journal's line format: a run with another version is not resumed."""


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
    srg: bool = False,
    lds: int = 0,
    tau: bool = False,
    truncate: bool = False,
    out: str | Path | None = None,
    batch_tokens: int | None = None,
    tokens: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure how faithful methods are to a model by masking features, on the same samples for all methods.

    Parameters
    ----------
    task
        A task: the result of `conserva.load`, or an instance such as `conserva.Text(model, tokenizer)`.
    data
        A file (.csv, .tsv, .jsonl, .json, .parquet), a dataset name, or a list of texts or of (text, label). Pairs of
        texts are ((text, text), label), or ((text, text), None) without labels. For graphs, a file with a column of
        SMILES, or a list of graphs or of (graph, label).
    methods
        Names of `conserva.methods()`, optionally with options, or custom rule sets. None uses all methods.
    protocol
        "default": special tokens are never masked, and the predicted class is tracked. "paper": as in Ali et al.
        (2022), special tokens are masked like others, and the true class is tracked. The virtual node of a graph is
        never masked.
    watch
        The class whose probability is tracked, "predicted" or "true". None uses that of the protocol.
    mask
        How removed features are masked. Tokens: "unk", "mask", "pad", or "drop", which hides them from attention; None
        uses the protocol's, the mask token (or "drop") by default and the unknown token in the paper. Nodes of a graph:
        "token" (or None), which hides them from attention, "induced", which deletes them, or "blank", which removes
        their features. Patches of an image: "mean" (or None), the mean colour of the image, or "grey".
    steps
        The number of steps in which features are removed or added, or "each" for one feature per step. None uses the
        protocol's 10.
    count
        The number of samples to draw from the data. None uses all.
    seed
        The seed of the draw and of the bootstrap.
    random_seeds
        The number of random orders that `random` is averaged over.
    reference
        Whether to measure baselines too: leave-one-out, which queries the model for each feature, and for superpixels
        and patches of grey images the order of their intensity, which does not depend on the model.
    srg
        Whether to measure the symmetric relevance gain, at the cost of one more curve for each method.
    lds
        The number of random subsets of each sample for the linear datamodelling score, such as 32, at the cost of as
        many forward passes, which all methods share. 0: it is not measured.
    tau
        Whether to measure Kendall's tau of scores and leave-one-out, at the cost of one forward pass for each feature,
        which all methods and the baseline leave-one-out share.
    truncate
        Whether to truncate texts that exceed the model's maximum length. Otherwise they raise an error.
    out
        A folder for intermediate results, from which an interrupted run is resumed.
    batch_tokens
        The maximum number of features in a batch of explanations, as in `conserva.explain`.
    tokens
        The maximum number of features in a batch of masked inputs. It is reduced when memory runs out.
    progress
        Called with the number of finished samples and the number of all samples.

    Returns
    -------
    Evaluation
        AUAC, AU-MSE and other metrics for each method, with intervals, and the differences between methods.

    Examples
    --------
    >>> texts = ["a gorgeous, witty, seductive movie.", "how dull."]
    >>> evaluation = conserva.evaluate(conserva.load(), texts, ["gi", "exact"], reference=False)
    >>> [result.method for result in evaluation.methods]
    ['gi', 'exact']
    """
    require_task(task)
    if seed < 0:
        raise Error(f"seed={seed} is negative: give 0 or more.")
    additional = Additional(srg, lds, tau)
    batch_size = budget(batch_tokens, task.model)
    whole = task.labelled(data)
    data_taken = whole.take(count, seed)
    chosen_protocol = protocol_of(protocol, watch, data_taken.labels is not None, steps)
    mask = task.mask(mask, chosen_protocol.masks)
    if mask == "drop" and chosen_protocol.special:
        raise Error("mask='drop' with protocol='paper' would hide every token: choose another mask or protocol.")
    chosen = _chosen(task, methods, random_seeds)
    classes = _classes(task)
    stream = Stream(task, tokens)
    if out is not None:
        check_folder(Path(out), f"out={str(out)!r}")
    samples = Samples(task, data_taken, classes, truncate)
    installed = versions("tokenizers")
    model = identity_of(task)
    settings = {
        "lines": LINES,
        "protocol": _shown(chosen_protocol),
        "mask": mask,
        "truncate": truncate,
        "methods": {method.name: dict(method.options) for method in chosen},
        "reference": reference,
        **additional.settings(),
        "data": samples.fingerprint,
        "model": model,
        "versions": {name: version for name, version in installed.items() if name != "python"},
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
        run = _Run(task, chosen_protocol, mask, chosen, reference, additional, journal, stream)
        run.all(samples, batch_size, progress)
        summary = summarise(records(), chosen_protocol, seed, additional)
    finally:
        journal.close()
    return Evaluation(
        methods=summary.methods,
        pairs=summary.pairs,
        protocol={
            **_shown(chosen_protocol),
            "mask": mask,
            "eraser_percent": list(ERASER_PERCENT),
            **additional.settings(),
        },
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
            "methods": {method.name: dict(method.options) for method in chosen},
        },
        without_value=summary.without_value,
    )


def _shown(protocol: Protocol) -> dict[str, Any]:
    return {key: value for key, value in asdict(protocol).items() if key != "masks"}


def _chosen(task: Task, names: Sequence[MethodLike] | None, random_seeds: int) -> list[Method]:
    """Return the methods without duplicates, with `random` repeated for each seed."""
    if random_seeds < 1:
        raise Error(f"random_seeds={random_seeds} is not positive: give 1 or more.")
    wanted: list[MethodLike] = [*methods()] if names is None else list(names)
    if not wanted:
        raise Error("methods=[] is empty: give some of conserva.methods(), or None for all.")
    expanded = [
        each
        for name in wanted
        for each in ([f"random:seed={seed}" for seed in range(random_seeds)] if name == "random" else [name])
    ]
    found = [find(each, tokens=task.special_ids) for each in expanded]
    by_name = {method.name: method for method in found}
    return list(by_name.values())


def _classes(task: Task) -> int:
    classes = task.classes
    if task.head is REGRESSION:
        raise Error(
            f"{task.name} has a regression head, but the curves need class probabilities. If its logits are classes, "
            "set head=, as in conserva.load(..., head='multi_label')."
        )
    if task.head is BINARY:
        raise Error(
            f"{task.name} has a single logit, but the curves need the probability of one class among several. With "
            "head='ordinal' the single logit of a text classifier is interpreted as two classes."
        )
    if classes < 2:
        raise Error(f"{task.name} has {classes} class(es), but the curves need the probability of one among several.")
    return classes


class _Run:
    """The computation of an evaluation, in batches that are the same in an interrupted and in an uninterrupted run."""

    def __init__(
        self,
        task: Task,
        protocol: Protocol,
        mask: str,
        chosen: Sequence[Method],
        reference: bool,
        additional: Additional,
        journal: SampleJournal,
        stream: Stream,
    ) -> None:
        self.task, self.protocol, self.mask = task, protocol, mask
        self.chosen, self.reference, self.additional = list(chosen), reference, additional
        self.journal, self.stream = journal, stream
        self.controls: frozenset[str] = frozenset()
        self.refused = dict(journal.refused)

    def all(self, samples: Samples, tokens: int, progress: Callable[[int, int], None] | None) -> None:
        """Measure all samples, in batches of similar length."""
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
                if all(self.journal.has_curves(sample.number) for sample in part):
                    continue
                scores = [self.journal.scores(sample.number) for sample in part]
                points_of_samples = curves(
                    self.task, self.stream, part, scores, self.protocol, self.mask, self.additional
                )
                for sample, points in zip(part, points_of_samples, strict=True):
                    if not self.journal.has_curves(sample.number):
                        self.journal.add(sample.number, {"methods": points})
                        done += 1
                if progress is not None:
                    progress(done, len(samples))

    def _score(self, batch: Sequence[Sample]) -> None:
        """Explain a batch by every method that applies to the model, and add the scores to the journal."""
        logits = clean_logits(self.task, self.stream, batch, self.mask)
        labels = [sample.label for sample in batch]
        classes = labels if self.protocol.target == "true" else logits.argmax(-1).tolist()
        targets = [int(index) for index in classes if index is not None]
        outputs = [float(row[target]) for row, target in zip(logits, targets, strict=True)]
        scores: dict[str, list[np.ndarray]] = {}
        for method in self.chosen:
            if method.name in self.refused:
                continue
            try:
                scores[method.name], _ = attributions(self.task, method, batch, targets)
            except NotApplicable as reason:
                if self.journal.has_any_scores:
                    raise Error(f"method={method.name!r} worked for other samples, but not here: {reason}") from None
                self.refused[method.name] = str(reason)
        if not scores:
            raise Error(f"No method applies to {self.task.name}: {next(iter(self.refused.values()))}")
        drops: list[np.ndarray] = []
        if self.reference or self.additional.tau:
            drops = leave_one_out(self.task, self.stream, batch, self.protocol, self.mask, targets, outputs)
        if self.reference:
            scores[LEAVE_ONE_OUT] = drops
        controls = [
            {name: values for name, values in sample.encoded.controls().items() if name in self.controls}
            for sample in batch
        ]
        for i, sample in enumerate(batch):
            if not self.journal.has_scores(sample.number):
                all_scores = {**{name: values[i] for name, values in scores.items()}, **controls[i]}
                self.journal.add(
                    sample.number,
                    {
                        "text": sample.encoded.text,
                        "label": sample.label,
                        "target": targets[i],
                        "output": outputs[i],
                        "predicted": int(logits[i].argmax()),
                        "scores": {name: values.tolist() for name, values in all_scores.items()},
                        "controls": list(controls[i]),
                        "refused": self.refused,
                        **({"drops": drops[i].tolist()} if self.additional.tau else {}),
                    },
                )

    def _parts(self, batch: Sequence[Sample]) -> Iterator[list[Sample]]:
        """Split a batch into parts whose masked rows fill a batch of the stream. The split is deterministic."""
        methods = len(self.chosen) + self.reference
        part: list[Sample] = []
        size = 0
        for sample in batch:
            part.append(sample)
            steps = self.protocol.steps or len(sample.encoded)
            points = (2 + self.additional.srg) * (steps + 1) + 2 * len(ERASER_PERCENT)
            size += (methods * points + self.additional.lds) * len(sample.encoded)
            if size >= self.stream.tokens:
                yield part
                part, size = [], 0
        if part:
            yield part
