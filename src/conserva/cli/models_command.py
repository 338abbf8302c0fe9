"""`conserva models`."""

from __future__ import annotations

import argparse

from ..models.bundled import KnownModel, bundled_models
from .arguments import FORMATTER, Commands
from .output import print_entry, print_json

MODELS = """examples:
  conserva models
  conserva models --json

Lists the models that need no download: the bundled ones, and those in the cache of the Hugging Face Hub that there is a
task for, by their configurations. conserva doctor MODEL checks that explanations of a model are computed correctly."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("models", help="list the models that need no download", epilog=MODELS, **FORMATTER)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_models, imports=())


def _models(given: argparse.Namespace) -> None:
    from ..tasks.cached import cached_models

    models = [*bundled_models(), *cached_models()]
    if given.json:
        print_json([model.to_dict() for model in models])
        return
    width = min(60, max(len(model.name) for model in models))
    for source, title in (("bundled", "Bundled"), ("cache", "In the cache of the Hugging Face Hub")):
        listed = [model for model in models if model.source == source]
        if listed:
            print(title)
        for model in listed:
            print_entry(f"  {model.name:<{width}}  ", _described(model))


def _described(model: KnownModel) -> str:
    tells = f"; tells {', '.join(model.labels[:4])}{', ...' if len(model.labels) > 4 else ''}" if model.labels else ""
    size = f"{model.bytes / 1e9:.1f} GB" if model.bytes >= 1e9 else f"{model.bytes / 1e6:.1f} MB"
    return f"{model.kind}, {size}, {model.licence or 'no licence stated'}; reads {model.reads}{tells}"
