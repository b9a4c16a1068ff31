"""`fetchproxy completion`: completion for bash, zsh and fish, written from the commands themselves.

The script knows all words, so a TAB starts no process. It is made anew with each version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from shlex import quote
from typing import Annotated, Any, NamedTuple

import typer

from fetchproxy import __version__
from fetchproxy.cli import main as cli
from fetchproxy.config.load import all_keys


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class OptionWord(NamedTuple):
    """`value`: the metavar of the value that follows; "" for a flag."""

    name: str
    value: str
    meaning: str


class CommandWords(NamedTuple):
    """`path`: "" for `fetchproxy` itself, else `keys` or `keys generate`."""

    path: str
    meaning: str
    options: tuple[OptionWord, ...]
    commands: tuple[str, ...] = ()


_HELP = OptionWord("--help", "", "Show help.")


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell to complete in.")],
) -> None:
    """Print a shell-completion script for commands, options and settings.

    bash: `fetchproxy completion bash > ~/.local/share/bash-completion/completions/fetchproxy`.
    zsh: `fetchproxy completion zsh > DIRECTORY/_fetchproxy`, with DIRECTORY in $fpath. fish:
    `fetchproxy completion fish > ~/.config/fish/completions/fetchproxy.fish`.

    Exit codes: 0 success; 2 the shell is not one of these.
    """
    typer.echo(script(shell), nl=False)


def script(shell: Shell) -> str:
    commands = list(_commands())
    return "\n".join(_SCRIPTS[shell](commands)) + "\n"


def _commands() -> Iterator[CommandWords]:
    all_options = (
        OptionWord("--help", "", "Show help."),
        OptionWord("--version", "", "Show the version."),
    )
    yield CommandWords("", "", all_options, cli.COMMANDS)
    for name in cli.COMMANDS:
        yield from _subcommands(name, cli.loaded(name))


def _subcommands(path: str, command: Any) -> Iterator[CommandWords]:
    meaning = (command.help or "").partition("\n")[0]
    below: Mapping[str, Any] = getattr(command, "commands", {})
    yield CommandWords(path, meaning, tuple(_options(command)), tuple(below))
    for name, one in below.items():
        yield from _subcommands(f"{path} {name}", one)


def _options(command: Any) -> Iterator[OptionWord]:
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            value = "" if parameter.is_flag else parameter.metavar or "VALUE"
            meaning = (parameter.help or "").replace("\\[", "[")
            for name in parameter.opts:
                yield OptionWord(name, value, " ".join(meaning.split()))
    yield _HELP


def _values(commands: list[CommandWords]) -> tuple[list[str], list[str], list[str]]:
    """The options that take a file, those that take a setting, and those that take another value.
    An option means the same in each command, but a name of --to and --from.
    """
    value_by_option = {o.name: o.value for command in commands for o in command.options if o.value}
    files = sorted(
        name for name, value in value_by_option.items() if value in ("FILE", "PATH", "DIR")
    )
    others = sorted(name for name in value_by_option if name not in files and name != "--set")
    return files, ["--set"], others


def _settings() -> str:
    return " ".join(f"{name}=" for name in all_keys())


def _alternatives(paths: list[str]) -> str:
    return "|".join(map(quote, paths))


def _bash(commands: list[CommandWords]) -> Iterator[str]:
    files, settings, others = _values(commands)
    paths = [command.path for command in commands if command.path]
    yield f"# bash completion for fetchproxy {__version__}; from `fetchproxy completion bash`"
    yield "_fetchproxy() {"
    yield "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}"
    yield '    local path="" words="" i'
    yield "    COMPREPLY=()"
    yield "    for ((i = 1; i < COMP_CWORD; i++)); do"
    yield '        case "${path:+$path }${COMP_WORDS[i]}" in'
    yield f'            {_alternatives(paths)}) path="${{path:+$path }}${{COMP_WORDS[i]}}" ;;'
    yield "        esac"
    yield "    done"
    yield '    case "$previous" in'
    yield f'        {"|".join(files)}) COMPREPLY=($(compgen -f -- "$current")); return ;;'
    yield f"        {'|'.join(settings)})"
    yield "            compopt -o nospace 2>/dev/null"
    yield f'            COMPREPLY=($(compgen -W "{_settings()}" -- "$current")); return ;;'
    yield f"        {'|'.join(others)}) return ;;"
    yield "    esac"
    yield '    case "$path" in'
    for command in commands:
        words = " ".join([*command.commands, *(option.name for option in command.options)])
        yield f'        {quote(command.path)}) words="{words}" ;;'
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -F _fetchproxy fetchproxy"


def _zsh(commands: list[CommandWords]) -> Iterator[str]:
    files, settings, others = _values(commands)
    paths = [command.path for command in commands if command.path]
    meanings = {command.path: command.meaning for command in commands}
    yield "#compdef fetchproxy"
    yield f"# zsh completion for fetchproxy {__version__}; from `fetchproxy completion zsh`"
    yield "_fetchproxy() {"
    yield '    local place="" previous="${words[CURRENT-1]}" i'
    yield "    local -a found"
    yield "    for ((i = 2; i < CURRENT; i++)); do"
    yield '        case "${place:+$place }${words[i]}" in'
    yield f'            {_alternatives(paths)}) place="${{place:+$place }}${{words[i]}}" ;;'
    yield "        esac"
    yield "    done"
    yield '    case "$previous" in'
    yield f"        {'|'.join(files)}) _files; return ;;"
    yield f"        {'|'.join(settings)}) compadd -S '' -- {_settings()}; return ;;"
    yield f"        {'|'.join(others)}) return ;;"
    yield "    esac"
    yield '    case "$place" in'
    for command in commands:
        prefix = f"{command.path} " if command.path else ""
        commands_with_meaning = [(name, meanings[f"{prefix}{name}"]) for name in command.commands]
        commands_with_meaning += [(option.name, option.meaning) for option in command.options]
        words = " ".join(quote(f"{name}:{meaning}") for name, meaning in commands_with_meaning)
        yield f"        {quote(command.path)}) found=({words}) ;;"
    yield "    esac"
    yield "    _describe 'fetchproxy' found"
    yield "}"
    yield "compdef _fetchproxy fetchproxy"


def _fish(commands: list[CommandWords]) -> Iterator[str]:
    yield f"# fish completion for fetchproxy {__version__}; from `fetchproxy completion fish`"
    yield "complete -c fetchproxy -f"
    for command in commands:
        condition = _fish_condition(command)
        for name in command.commands:
            path = f"{command.path} {name}".strip()
            meaning = next(command.meaning for command in commands if command.path == path)
            yield f"complete -c fetchproxy -n {condition} -a {name} -d {_fish_quoted(meaning)}"
        for option in command.options:
            length = "-l" if option.name.startswith("--") else "-s"
            takes = " -r" if option.value else ""
            takes += " -F" if option.value == "FILE" else ""
            takes += f" -a {_fish_quoted(_settings())}" if option.name == "--set" else ""
            option_words = f"{length} {option.name.lstrip('-')}{takes}"
            meaning = _fish_quoted(option.meaning)
            yield f"complete -c fetchproxy -n {condition} {option_words} -d {meaning}"


def _fish_condition(command: CommandWords) -> str:
    if not command.path:
        return "__fish_use_subcommand"
    names = command.path.split()
    conditions = [f"__fish_seen_subcommand_from {name}" for name in names]
    if command.commands:
        conditions.append(f"not __fish_seen_subcommand_from {' '.join(command.commands)}")
    return f"'{'; and '.join(conditions)}'"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_SCRIPTS: Mapping[Shell, Callable[[list[CommandWords]], Iterator[str]]] = {
    Shell.BASH: _bash,
    Shell.ZSH: _zsh,
    Shell.FISH: _fish,
}
