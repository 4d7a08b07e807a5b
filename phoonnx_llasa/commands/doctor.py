"""`phoonnx-llasa doctor`: whether everything works here, and how fast it will be."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from phoonnx_llasa.commands.common import (
    echo_json,
    logging_options,
    only_sound_on_stdout,
    set_up_logging,
    tell,
)

if TYPE_CHECKING:
    from phoonnx_llasa.commands.checks import Finding

_COLOURS: Final = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}
_NAME_WIDTH: Final = 22


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.option("--quick", is_flag=True, help="Neither speak nor measure memory.")
@logging_options
def doctor(as_json: bool, quick: bool, quiet: bool, verbose: int) -> None:
    """Find out what is wrong, and how fast speech will be on this machine.

    Looks at versions, onnxruntime, folders, the ways by which phoonnx and OVOS find this package,
    and every model that is here; measures how fast memory is read; speaks a sentence with the
    built-in voice. Nothing is downloaded or changed. The exit code is 1 if something is broken.

    \b
    phoonnx-llasa doctor
    phoonnx-llasa doctor --json > report.json
    """
    findings: list[Finding] = []
    with only_sound_on_stdout():
        _try_logging(verbose, quiet=quiet)
        from phoonnx_llasa.commands.checks import run_checks

        findings.extend(run_checks(quick=quick))
    broken = [finding for finding in findings if finding.status == "error"]
    if as_json:
        report = {"healthy": not broken, "findings": [_plain(asdict(f)) for f in findings]}
        echo_json(report)
    else:
        _print(findings, quiet=quiet)
    if broken:
        raise click.exceptions.Exit(1)


def _try_logging(verbose: int, *, quiet: bool) -> None:
    try:
        set_up_logging(verbose, quiet=quiet)
    except Exception as error:  # noqa: BLE001  (a package that is broken is what we are here for)
        tell(f"warning: {error}")


def _print(findings: list[Finding], *, quiet: bool) -> None:
    topic = ""
    for finding in findings:
        if quiet and finding.status in {"ok", "note"}:
            continue
        if finding.topic != topic:
            topic = finding.topic
            click.echo(topic)
        status = click.style(f"{finding.status:8}", fg=_COLOURS[finding.status])
        click.echo(f"  {status}{finding.name.ljust(_NAME_WIDTH)} {finding.detail}")
        if finding.advice:
            click.echo(" " * 10 + f"-> {finding.advice}")
    counts = [(kind, sum(f.status == kind for f in findings)) for kind in ("error", "warning")]
    told = ", ".join(f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in counts if n)
    if not quiet:
        click.echo(told or "all is well")


def _plain(value: Any) -> Any:
    """JSON has no infinity and no "not a number"."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
