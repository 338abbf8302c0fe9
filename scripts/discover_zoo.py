"""Search transformers for the model types that `tests/support/zoo.py` can build and run, and print its tables.

Every type takes about twenty minutes on one core; types named on the command line are tried alone. The details of each
failure go to standard error.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import signal
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import torch
import transformers
from transformers.models.auto import modeling_auto

import zoo

_MAPPINGS: dict[str, Any] = {
    "AutoModelForSequenceClassification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForCausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForSeq2SeqLM": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForImageClassification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForMaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "AutoModelForAudioClassification": modeling_auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
    "AutoModel": modeling_auto.MODEL_MAPPING_NAMES,
}
_SECONDS, _BYTES, _PARAMETERS = 20, 10 << 30, 4_000_000


class UnfitError(Exception):
    """Says why a model that builds is of no use."""


def auto_classes(model_type: str) -> list[str]:
    """Give the auto classes to try, best first; AutoModel only where nothing else knows the type."""
    known = [name for name, mapping in _MAPPINGS.items() if model_type in mapping]
    return known[:-1] if len(known) > 1 and known[-1] == "AutoModel" else known


def read_out(output: Any) -> torch.Tensor:
    """Give the tensor from which a scalar is read."""
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(output, name, None), torch.Tensor):
            return getattr(output, name)
    values = output.values() if hasattr(output, "values") else output
    return next(v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point())


def perturbed(made: dict[str, Any]) -> dict[str, Any]:
    """Change one text token and every floating input."""
    changed = dict(made)
    for name, value in made.items():
        if name == "input_ids":
            changed[name] = value.clone()
            changed[name][:, -3] = torch.where(value[:, -3] == 50, 51, 50)
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            changed[name] = value + 0.3 * torch.randn_like(value)
    return changed


def family(model: Any, made: dict[str, Any]) -> str:
    """Sort a model into one of the families of the zoo."""
    config, model_type = model.config, model.config.model_type
    text, pixels = "input_ids" in made, any(name.startswith("pixel") for name in made)
    audio = bool({"input_values", "input_features"} & set(made))
    other_senses = any(
        getattr(config, n, None) is not None for n in ("vision_config", "audio_config", "encoder_config")
    )
    causal = model_type in _MAPPINGS["AutoModelForCausalLM"] and model_type not in _MAPPINGS["AutoModelForMaskedLM"]
    if any("expert" in type(module).__name__.lower() for module in model.modules()):
        return "moe"
    if (text and (pixels or audio or other_senses)) or {"visual_pos", "visual_embeds"} & set(made):
        return "multimodal"
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder"
    if pixels or "ForImage" in type(model).__name__:  # one type reads its images as tokens
        return "vision"
    if audio:
        return "audio"
    return "decoder" if causal or any(getattr(m, "is_causal", False) for m in model.modules()) else "encoder"


def reason(error: Exception, stage: str) -> str:
    """Put an exception into one short line, the same for all types that fail alike."""
    message = str(error)
    print("   ", stage, type(error).__name__, " ".join(message.split())[:300], file=sys.stderr)
    if isinstance(error, UnfitError):
        return message
    if isinstance(error, ImportError):
        packages = re.findall(r"requires the (\w+) library but|No module named '(\w+)'", message)
        return "needs " + " and ".join(a or b for a, b in packages)
    return {"build": "does not build once shrunk"}.get(stage, "does not run on generic sizes and inputs")


def examine(specimen: zoo.Specimen, model: Any) -> str:
    """Run one model; give its family, or raise to say what is wrong with it."""
    if sum(parameter.numel() for parameter in model.parameters()) > _PARAMETERS:
        raise UnfitError("stays too large")
    if not any(re.search("attention|attn|mla", type(module).__name__, re.IGNORECASE) for module in model.modules()):
        raise UnfitError("has no attention")
    made = zoo.inputs(specimen, model)
    with torch.no_grad():
        first, second = read_out(model(**made)), read_out(model(**made))
        other = read_out(model(**perturbed(made)))
        model(**zoo.inputs(specimen, model, batch=1, length=5))
    graph = read_out(model(**made))
    graph.sum().backward()
    if first.shape != second.shape or not torch.equal(first, second):
        raise UnfitError("varies from call to call")
    if not (first.isfinite().all() and graph.isfinite().all() and graph.requires_grad):
        raise UnfitError("is not finite or has no gradient")
    if first.shape != other.shape or (first - other).abs().max() < 1e-6:
        raise UnfitError("does not depend smoothly on its inputs")
    return family(model, made)


def _worker(model_type: str, auto_class: str, results: Any) -> None:
    def stop(*_: Any) -> None:
        raise UnfitError(f"takes more than {_SECONDS} s")

    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    specimen, stage = zoo.Specimen(model_type, auto_class, ""), "build"
    try:
        model, stage = zoo.build(specimen), "run"
        results.send((True, examine(specimen, model)))
    except Exception as error:
        results.send((False, reason(error, stage)))


def attempt(model_type: str, auto_class: str) -> tuple[bool, str]:
    """Examine a type in a process of its own, which may hang, run out of memory or crash."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_worker, args=(model_type, auto_class, there))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(2 * _SECONDS) else (False, f"takes more than {_SECONDS} s")
    except EOFError:
        return False, "crashes"
    finally:
        process.kill()
        process.join()


def candidates() -> list[str]:
    """Give every type, but for the parts of others: a vision tower, say, which has no head of its own."""
    types = sorted({model_type for mapping in _MAPPINGS.values() for model_type in mapping})
    parts = set()
    for model_type in types:
        try:
            config = transformers.AutoConfig.for_model(model_type)
        except Exception:  # a default configuration need not be valid; `attempt` reports that
            continue
        parts |= {getattr(part, "model_type", "") for part in vars(config).values()} - {model_type}
    return [t for t in types if t not in zoo.NO_ATTENTION and (t not in parts or auto_classes(t) != ["AutoModel"])]


def print_table(name: str, annotation: str, groups: dict[Any, list[str]]) -> None:
    """Print groups of types as a dictionary of space-separated names."""
    print(f"{name}: {annotation} = {{")
    for key, types in sorted(groups.items()):
        label = f'"{key}"' if isinstance(key, str) else "({})".format(", ".join(f'"{part}"' for part in key))
        text = f'    {label}: """{" ".join(sorted(types))}""",'
        print(textwrap.fill(text, 120, subsequent_indent=" " * 4, break_long_words=False, break_on_hyphens=False))
    print("}")


def main(types: list[str]) -> None:
    """Try every type and print the tables."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    specimens: dict[Any, list[str]] = defaultdict(list)
    not_built: dict[Any, list[str]] = defaultdict(list)
    for model_type in types or candidates():
        works, outcome = False, ""
        for auto_class in auto_classes(model_type):
            works, outcome = attempt(model_type, auto_class)
            if works:
                specimens[auto_class, outcome].append(model_type)
                break
        if not works:
            not_built[outcome].append(model_type)
        print(model_type, "works:" if works else "fails:", outcome, file=sys.stderr, flush=True)
    print_table("_TABLE", "dict[tuple[str, str], str]", specimens)
    print_table("_REASONS", "dict[str, str]", not_built)


if __name__ == "__main__":
    main(sys.argv[1:])
