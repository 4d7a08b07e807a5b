"""docs/cli.md, made from the command itself.

python -m scripts.docs.cli [--check]
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from phoonnx_llasa.cli import cli
from phoonnx_llasa.files import atomic_writer

PAGE: Final = Path(__file__).parents[2] / "docs" / "cli.md"
_NAME: Final = "phoonnx-llasa"
_HEAD: Final = "<!-- Written by `python -m scripts.docs.cli` from the command itself. -->"
#: What click puts before a paragraph that is not to be wrapped.
_AS_IT_IS: Final = "\b\n"


def page() -> str:
    """The whole page as Markdown."""
    context = click.Context(cli, info_name=_NAME, **cli.context_settings)
    parts = [_HEAD, *_about(cli, context, level=1)]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if command is not None and not command.hidden:
            own = click.Context(command, info_name=name, parent=context)
            parts += _about(command, own, level=2)
    return "\n\n".join(parts) + "\n"


def _about(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}"
    yield f"    {' '.join([context.command_path, *command.collect_usage_pieces(context)])}"
    yield from _paragraphs(command.help or "")
    yield _options(command, context)
    yield from _paragraphs(command.epilog or "")


def _paragraphs(text: str) -> Iterator[str]:
    """Prose without line ends, and what is not to be wrapped as an indented block."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith(_AS_IT_IS):
            title, *lines = paragraph.removeprefix(_AS_IT_IS).split("\n")
            if title.endswith(":"):
                yield title
            else:
                lines.insert(0, title)
            block = inspect.cleandoc("\n".join(lines))
            yield "\n".join(f"    {line}" for line in block.split("\n"))
        elif paragraph:
            yield _escaped(" ".join(paragraph.split()))


def _options(command: click.Command, context: click.Context) -> str:
    rows = ["| option | meaning |", "|---|---|"]
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        # an argument without a meaning is in the usage line above
        if record is not None and all(record):
            option, meaning = record
            rows.append(f"| `{_in_cell(option)}` | {_in_cell(_escaped(meaning))} |")
    return "\n".join(rows)


def _escaped(text: str) -> str:
    """Markdown takes stars for emphasis, angle brackets for HTML and NAME_NAME for nothing."""
    return text.replace("*", "\\*").replace("<", "&lt;")


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or say whether it is right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is old")
    if parser.parse_args(arguments).check:
        if PAGE.read_text(encoding="utf-8") == page():
            return 0
        print(f"{PAGE} is old: run python -m scripts.docs.cli", file=sys.stderr)
        return 1
    with atomic_writer(PAGE) as stream:
        stream.write(page().encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
