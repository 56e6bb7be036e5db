"""Shell completion: one script, made from the verbs' parsers and the job file's model.

The script is static, so that a TAB starts no Python. It completes `clusterddp VERB`,
and `python -m clusterddp.VERB` too. zsh gets the same through its bashcompinit.
"""

import argparse
import importlib
import shlex
from collections.abc import Iterator, Mapping, Sequence

from clusterddp.errors import UsageError

__all__ = ["parser_of", "render_completion"]

_HEADS = {
    "bash": "# clusterddp for bash: source <(clusterddp --completion bash)\n",
    "zsh": "# clusterddp for zsh: source <(clusterddp --completion zsh)\n"
    "autoload -Uz compinit bashcompinit\n"
    "(( ${+functions[compdef]} )) || compinit -u\nbashcompinit\n",
}

_KINDS = {
    "RUN": "run",
    "RUN_DIR": "run",
    "RUN[@STEP]": "run",
    "RUN|key=value": "run key",
    "key=value": "key",
    "JOB.yaml": "job",
    "JOB.yaml|RUN_DIR": "job run",
    "DIR": "directory",
    "FILE": "file",
    "FILE.html": "file",
    "OUT.pt|OUT.safetensors": "file",
}
"""What may stand for a metavar; nothing is offered for numbers and free words."""

_BODY = r"""
_clusterddp_runs() {  # NAME and NAME/ID below the runs' root, and directories
    local root="${CLUSTERDDP_RUNS:-runs}" word path
    for word in "${_clusterddp_given[@]}"; do
        [[ "$path" == --runs ]] && root="$word"
        path="$word"
    done
    for path in "$root/$1"*/; do
        [[ -d "$path" ]] || continue
        path="${path%/}"
        [[ "${path##*/}" == latest ]] || printf '%s\n' "${path#"$root"/}"
    done
    _clusterddp_paths -d "$1"*
}

_clusterddp_paths() {  # TEST PATH...: those that pass it
    local how="$1" path
    shift
    for path in "$@"; do
        case "$how" in
        -d) [[ -d "$path" ]] ;;
        -f) [[ -f "$path" ]] ;;
        *) [[ -e "$path" ]] ;;
        esac && printf '%s\n' "$path"
    done
}

_clusterddp_candidates() {  # KINDS-AND-WORDS CURRENT: one candidate a line
    local kind word
    for kind in $(printf '%s' "$1"); do
        case "$kind" in
        :none) ;;
        :run) _clusterddp_runs "$2" ;;
        :job) _clusterddp_paths -d "$2"*; _clusterddp_paths -f "$2"*.y*ml ;;
        :key)
            for word in $(printf '%s' "$_clusterddp_keys"); do
                [[ "$word" == "$2"* ]] && printf '%s\n' "$word"
            done
            ;;
        :directory) _clusterddp_paths -d "$2"* ;;
        :file) _clusterddp_paths -e "$2"* ;;
        "$2"*) printf '%s\n' "$kind" ;;
        esac
    done
}

_clusterddp_reply() {  # KINDS-AND-WORDS CURRENT
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        [[ -n "$line" ]] && COMPREPLY+=("$line")
    done < <(_clusterddp_candidates "$1" "$2" 2>/dev/null | sort -u)
    if [[ "${#COMPREPLY[@]}" == 1 ]]; then
        line="${COMPREPLY[*]}"
        [[ "$line" == *= ]] && compopt -o nospace 2>/dev/null
        [[ -d "$line" ]] && compopt -o filenames 2>/dev/null
    fi
    return 0
}

_clusterddp_verb() {  # VERB PREVIOUS CURRENT
    local values
    COMPREPLY=()
    [[ "$2" == '=' || "$3" == '=' ]] && return 0  # bash parts words at it
    values="$(_clusterddp_values "$1 $2")"
    if [[ -z "$values" ]]; then
        case "$3" in
        -*) values="$(_clusterddp_options "$1")" ;;
        *) values="$(_clusterddp_values "$1 -")" ;;
        esac
    fi
    _clusterddp_reply "$values" "$3"
}

_clusterddp() {
    local current="${COMP_WORDS[COMP_CWORD]}" verb="${COMP_WORDS[1]}"
    _clusterddp_given=("${COMP_WORDS[@]}")
    if [[ "$COMP_CWORD" == 1 ]]; then
        _clusterddp_reply "$_clusterddp_verbs -h --version --completion" "$current"
    elif [[ "$verb" == --completion ]]; then
        _clusterddp_reply "bash zsh" "$current"
    else
        _clusterddp_verb "$verb" "${COMP_WORDS[COMP_CWORD-1]}" "$current"
    fi
}

_clusterddp_python() {  # python -m clusterddp.VERB ...
    local current="${COMP_WORDS[COMP_CWORD]}" at word modules verb
    _clusterddp_given=("${COMP_WORDS[@]}")
    COMPREPLY=()
    for ((at = 2; at <= COMP_CWORD; at++)); do
        [[ "${COMP_WORDS[at-1]}" == -m ]] || continue
        word="${COMP_WORDS[at]}"
        if [[ "$at" == "$COMP_CWORD" && "$word" == c* ]]; then
            modules=clusterddp
            for verb in $(printf '%s' "$_clusterddp_verbs"); do
                modules+=" clusterddp.$verb"
            done
            _clusterddp_reply "$modules" "$current"
        elif [[ "$word" == clusterddp.* ]]; then
            verb="${word#clusterddp.}"
            _clusterddp_verb "$verb" "${COMP_WORDS[COMP_CWORD-1]}" "$current"
        fi
        return 0
    done
}

complete -F _clusterddp clusterddp
complete -o bashdefault -o default -F _clusterddp_python python python3
"""


def render_completion(shell: str, verbs: Sequence[str]) -> str:
    """Give the script for a shell.

    Args:
        shell: bash or zsh.
        verbs: the modules below clusterddp that have a `build_parser`.

    Raises:
        UsageError: no such shell.
    """
    if shell not in _HEADS:
        message = (
            f"--completion {shell}: no script for that shell; expected bash or zsh, "
            "as in: source <(clusterddp --completion bash)"
        )
        raise UsageError(message)
    parsers = {verb: parser_of(verb) for verb in verbs}
    parts = [
        _HEADS[shell],
        f"_clusterddp_verbs={shlex.quote(' '.join(verbs))}\n",
        f"_clusterddp_keys={shlex.quote(' '.join(_job_keys()))}\n",
        _function("_clusterddp_options", dict(_options(parsers))),
        _function("_clusterddp_values", dict(_values(parsers))),
        _BODY,
    ]
    return "\n".join(parts)


def parser_of(verb: str) -> argparse.ArgumentParser:
    """Give the parser of a verb."""
    module = importlib.import_module(f"clusterddp.{verb}")
    parser: argparse.ArgumentParser = module.build_parser()
    return parser


def _function(name: str, answers: Mapping[str, str]) -> str:
    cases = (
        f"    {shlex.quote(word)}) printf '%s' {shlex.quote(answer)} ;;\n"
        for word, answer in answers.items()
    )
    return f'{name}() {{\n    case "$1" in\n{"".join(cases)}    esac\n}}\n'


def _options(
    parsers: Mapping[str, argparse.ArgumentParser],
) -> Iterator[tuple[str, str]]:
    for verb, parser in parsers.items():
        words = (word for action in _actions(parser) for word in action.option_strings)
        yield verb, " ".join(words)


def _values(
    parsers: Mapping[str, argparse.ArgumentParser],
) -> Iterator[tuple[str, str]]:
    """Give what may follow `VERB --option`; `VERB -` stands for plain arguments."""
    for verb, parser in parsers.items():
        actions = list(_actions(parser))
        plain = [_answer(action) for action in actions if not action.option_strings]
        yield f"{verb} -", " ".join(filter(None, plain))
        for action in actions:
            takes_one = action.nargs != 0
            for word in action.option_strings if takes_one else ():
                yield f"{verb} {word}", _answer(action) or ":none"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    yield from parser._actions  # noqa: SLF001 - argparse has no other way


def _answer(action: argparse.Action) -> str:
    if action.choices is not None:
        return " ".join(map(str, action.choices))
    kinds = _KINDS.get(str(action.metavar), "").split()
    return " ".join(f":{kind}" for kind in kinds)


def _job_keys() -> list[str]:
    """Give `train.epochs=` and the like, all keys of the job file but free tables."""
    from clusterddp.config.schema import Job

    schema = Job.model_json_schema()
    return [f"{key}=" for key in _keys_of(schema, schema.get("$defs", {}))]


def _keys_of(
    section: Mapping[str, object], sections: Mapping[str, object]
) -> list[str]:
    found: list[str] = []
    properties = section.get("properties")
    for name, value in properties.items() if isinstance(properties, dict) else ():
        below = _keys_of(_section_of(value, sections), sections)
        found += [f"{name}.{key}" for key in below] or [name]
    return found


def _section_of(
    value: Mapping[str, object], sections: Mapping[str, object]
) -> Mapping[str, object]:
    several = value.get("anyOf")
    for one in [value, *(several if isinstance(several, list) else [])]:
        found = sections.get(str(one.get("$ref", "")).rpartition("/")[2])
        if isinstance(found, dict):
            return found
    return {}
