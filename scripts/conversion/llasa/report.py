"""What the gates found, as JSON for the model card and as a table for people."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from phoonnx_llasa.files import atomic_writer, read_json

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one gate."""

    gate: str
    """`parity_llm`, `parity_codec` or `gate_quantized`."""
    title: str
    rows: Sequence[Row]
    """One figure a column; all rows have the same columns."""
    reasons: Sequence[str] = ()
    """What is beyond a limit, in words; empty if the gate is passed."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def passed(self) -> bool:
        """Nothing was beyond a limit."""
        return not self.reasons

    def table(self) -> str:
        """The rows as a markdown table."""
        if not self.rows:
            return "(nothing measured)"
        names = list(self.rows[0])
        lines = [names, ["---"] * len(names)]
        lines += [[show(row[name]) for name in names] for row in self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def text(self) -> str:
        """Table and outcome, as the commands print them."""
        lines = ["passed"] if self.passed else ["FAILED", *(f"- {each}" for each in self.reasons)]
        outcome = "\n".join(lines)
        return f"{self.title}\n\n{self.table()}\n\n{self.gate}: {outcome}"

    def write(self, path: Path) -> None:
        """Save as JSON, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "gate": self.gate,
            "passed": self.passed,
            "title": self.title,
            "rows": list(self.rows),
            "reasons": list(self.reasons),
            "limits": dict(self.limits),
            "note": self.note,
            "versions": versions(),
        }
        with atomic_writer(path) as stream:
            # A figure that is not finite has no JSON; the reader takes Python's names for it.
            stream.write(json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")


def read_report(path: Path) -> Report:
    """Read what `Report.write` wrote.

    Raises:
        BundleError: the file cannot be read.
        ValueError: it is no report.
    """
    record = read_json(path)
    try:
        return Report(
            record["gate"],
            record["title"],
            record["rows"],
            record["reasons"],
            record["limits"],
            record["note"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: is no report of a gate: {error}") from error


def versions() -> dict[str, str]:
    """What the figures were made with."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("onnxruntime", "onnx", "torch", "transformers", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def show(value: object) -> str:
    """A figure as people read it: 3 digits, small ones with an exponent."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"
    return str(value).replace("|", "\\|").replace("\n", " ")
