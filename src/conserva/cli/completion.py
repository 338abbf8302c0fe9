"""Completion scripts for shells, generated from the parsers of the commands."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..attribution.registry import methods
from ..engine.rules import RULE_SETS
from ..models.bundled import BUNDLED_MODELS


@dataclass(frozen=True)
class Value:
    """What can stand for an argument: some words, files, or anything."""

    words: tuple[str, ...] = ()
    files: bool = False
    lists: bool = False
    """Whether several words can be given, comma-separated."""


@dataclass(frozen=True)
class Option:
    """An option of a command."""

    flags: tuple[str, ...]
    help: str
    value: Value | None
    """None if the option has no value."""
    needs_value: bool = True


@dataclass(frozen=True)
class Completed:
    """A command: its options, and its argument."""

    help: str
    options: tuple[Option, ...]
    argument: Value


_VALUES: Mapping[str, Value] = {
    "method": Value(tuple(methods())),
    "methods": Value(tuple(methods()), lists=True),
    "rules": Value(tuple(RULE_SETS), lists=True),
    "model": Value(BUNDLED_MODELS, files=True),
    "name": Value(BUNDLED_MODELS, files=True),
    **dict.fromkeys(("data", "groups", "tagger", "embeddings", "digit"), Value(files=True)),
    "device": Value(("cpu", "cuda")),
}
"""The values of arguments by name, where the parser does not know them."""


def commands_of(parsers: Mapping[str, argparse.ArgumentParser]) -> dict[str, Completed]:
    """Return what can be completed for each command."""
    return {name: _command(parser) for name, parser in parsers.items()}


def _command(parser: argparse.ArgumentParser) -> Completed:
    options = tuple(
        Option(
            tuple(action.option_strings),
            _help(action.help or "", parser, action),
            None if action.nargs == 0 else _value(action),
            action.nargs != "?",
        )
        for action in parser._actions
        if action.option_strings
    )
    arguments = [_value(action) for action in parser._actions if not action.option_strings]
    return Completed(parser.description or "", options, arguments[0] if arguments else Value())


def _help(text: str, parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return " ".join((text % {**vars(action), "prog": parser.prog}).split())


def _value(action: argparse.Action) -> Value:
    if action.choices is not None:
        return Value(tuple(map(str, action.choices)))
    if action.type is Path:
        return Value(files=True)
    return _VALUES.get(action.dest, Value())


def bash(commands: Mapping[str, Completed]) -> str:
    """Return the script for bash."""
    cases = []
    for name, command in commands.items():
        values = [
            f"                {'|'.join(option.flags)}) {_bash_value(option.value)}; return ;;"
            for option in command.options
            if option.value is not None and option.needs_value
        ]
        flags = " ".join(flag for option in command.options for flag in option.flags)
        lines = [
            f"        {name})",
            '            case "$before" in',
            *values,
            "            esac",
            f'            if [[ "$word" == -* ]]; then _conserva_words {shlex.quote(flags)}',
            f"            else {_bash_value(command.argument)}; fi ;;",
        ]
        cases += lines
    return _BASH.format(names=shlex.quote(" ".join(commands)), cases="\n".join(cases))


def _bash_value(value: Value | None) -> str:
    if value is None:
        return ":"
    calls = []
    if value.words:
        calls.append(f"_conserva_{'list' if value.lists else 'words'} {shlex.quote(' '.join(value.words))}")
    if value.files:
        calls.append("_conserva_files")
    return "; ".join(calls) or ":"


_BASH = """# Completion of conserva for bash: source <(conserva completion bash)
_conserva_words() {{ COMPREPLY+=($(compgen -W "$1" -- "$word")); }}
_conserva_files() {{
    local found
    while IFS= read -r found; do COMPREPLY+=("$found"); done < <(compgen -f -- "$word")
    compopt -o filenames 2>/dev/null
}}
_conserva_list() {{
    local head=""
    [[ "$word" == *,* ]] && head="${{word%,*}},"
    COMPREPLY+=($(compgen -P "$head" -W "$1" -- "${{word##*,}}"))
    compopt -o nospace 2>/dev/null
}}
_conserva() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="" each
    COMPREPLY=()
    if [[ "$word" == "=" ]]; then word=""
    elif [[ "$before" == "=" && COMP_CWORD -gt 1 ]]; then before="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        if [[ "$each" != -* ]]; then command="$each"; break; fi
    done
    case "$command" in
{cases}
        "") if [[ "$word" == -* ]]; then _conserva_words "--help --version --debug"; else _conserva_words {names}; fi ;;
    esac
}}
complete -F _conserva conserva
"""


def zsh(commands: Mapping[str, Completed]) -> str:
    """Return the script for zsh."""
    functions = []
    for name, command in commands.items():
        specs = [_zsh_option(option) for option in command.options]
        specs.append(shlex.quote(f"*:argument:{_zsh_value(command.argument)}"))
        functions.append(f"        {name}) _arguments -S {' '.join(specs)} ;;")
    names = " ".join(map(shlex.quote, commands))
    return _ZSH.format(names=names, cases="\n".join(functions))


def _zsh_option(option: Option) -> str:
    """Return the specifications of an option for _arguments."""
    text = option.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    value = ""
    if option.value is not None:
        value = f"{':' if option.needs_value else '::'}value:{_zsh_value(option.value)}"
    together = f"({' '.join(option.flags)})" if len(option.flags) > 1 else ""
    return " ".join(shlex.quote(f"{together}{flag}[{text}]{value}") for flag in option.flags)


def _zsh_value(value: Value) -> str:
    words = " ".join(value.words)
    if value.lists:
        return f"_values -s , value {words}"
    if value.words and value.files:
        return f'_alternative "words\\:value\\:({words})" "files\\:file\\:_files"'
    return f"({words})" if value.words else "_files" if value.files else " "


_ZSH = """#compdef conserva
# Completion of conserva for zsh: source <(conserva completion zsh)
_conserva() {{
    local command
    if (( CURRENT == 2 )); then
        compadd -- {names} --help --version --debug
        return
    fi
    command="${{words[2]}}"
    shift words
    (( CURRENT-- ))
    case "$command" in
{cases}
    esac
}}
if [[ "${{funcstack[1]}}" == _conserva ]]; then _conserva "$@"; else compdef _conserva conserva; fi
"""


def fish(commands: Mapping[str, Completed]) -> str:
    """Return the script for fish."""
    lines = ["# Completion of conserva for fish: conserva completion fish | source", "complete -c conserva -f"]
    for flag in ("help", "version", "debug"):
        lines.append(f"complete -c conserva -n __fish_use_subcommand -l {flag}")
    for name, command in commands.items():
        lines.append(f"complete -c conserva -n __fish_use_subcommand -a {name}{_fish_help(command.help)}")
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [_fish_option(seen, option) for option in command.options]
        if argument := _fish_value(command.argument):
            lines.append(f"complete -c conserva {seen}{argument}")
    return "\n".join(lines) + "\n"


def _fish_option(seen: str, option: Option) -> str:
    flags = "".join(f" -{'l' if flag.startswith('--') else 's'} {flag.lstrip('-')}" for flag in option.flags)
    value = ""
    if option.value is not None:
        value = f"{' -r' if option.needs_value else ''}{_fish_value(option.value) or ' -f'}"
    return f"complete -c conserva {seen}{flags}{value}{_fish_help(option.help)}"


def _fish_value(value: Value) -> str:
    words = f" -a {_fish_quoted(' '.join(value.words))}" if value.words else ""
    return f"{' -F' if value.files else ' -f' if words else ''}{words}"


def _fish_help(text: str) -> str:
    return f" -d {_fish_quoted(text)}" if text else ""


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
