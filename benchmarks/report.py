"""Results -> tables in docs/performance.md, and a picture.

python -m benchmarks.report results.json [--output docs]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.engines import TITLES
from benchmarks.footprint import WHOLE
from phoonnx_llasa.files import atomic_writer

PAGE, PICTURE, NUMBERS = "performance.md", "performance.png", "performance.json"
BEGIN: Final = "<!-- measured: written by benchmarks.report -->"
END: Final = "<!-- /measured -->"

#: Where a legend hides nothing.
_BELOW: Final[dict[str, Any]] = {
    "loc": "upper center",
    "bbox_to_anchor": (0.5, -0.17),
    "ncols": 3,
    "frameon": False,
}

Results = dict[str, Any]
"""What ``benchmarks.run`` found, as it stands in its JSON."""


def write_report(results: Results, folder: Path) -> None:
    """Put numbers, picture and tables into a folder; the page keeps what stands around them."""
    folder.mkdir(parents=True, exist_ok=True)
    draw(results, folder / PICTURE)
    _write(folder / NUMBERS, json.dumps(results, indent=1) + "\n")
    page = folder / PAGE
    text = page.read_text(encoding="utf-8") if page.is_file() else f"# Speed\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} lacks the lines {BEGIN} and {END}, which the tables go between")
    _write(page, f"{before}{BEGIN}\n{tables(results)}\n{END}{after}")


def tables(results: Results) -> str:
    """Everything as Markdown."""
    parts = [
        _summary(results),
        _machine(results),
        f"![Milliseconds per token, and time to the first sound]({PICTURE})",
        _tokens(results),
        _prefill(results),
        _sentence(results),
        _loading(results),
        _codec(results),
        _sampling(results),
    ]
    return "\n\n".join(part for part in parts if part)


def _summary(results: Results) -> str:
    """The two or three numbers to remember."""
    tokens, faster = results["tokens"], results["times_as_fast"]
    if "compact" not in tokens or "phoonnx" not in tokens:
        return ""
    pasts = [str(past) for past in results["plan"]["pasts"]]
    middle = pasts[min(1, len(pasts) - 1)]
    whole, limit = tokens["compact"][middle]["whole"], results["limit"]["compact"][middle]
    ratios = [faster["phoonnx"][past] for past in pasts]
    text = (
        f"A code (20 ms of sound) takes {whole:.0f} ms behind {middle} tokens, of which reading "
        f"weights and cache takes {limit:.0f} ms ({100 * limit / whole:.0f} %). That is "
        f"{min(ratios):.2f} to {max(ratios):.2f} times as fast as phoonnx's own engine."
    )
    if sentence := results["sentence"]:
        own, host = sentence["own"], sentence["host"]
        text += (
            f" A sentence's first sound comes {host['first'] / own['first']:.1f} times as early."
        )
    return text


def _machine(results: Results) -> str:
    machine, model, plan = results["machine"], results["model"], results["plan"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    loads = [f"{load:.1f}" for load in results["load_average"]]
    activity = results["activity"]
    busy = (
        f", other processes had {100 * activity['others']:.0f} % of the processors' time and the "
        f"hypervisor {100 * activity['stolen']:.0f} %"
        if activity
        else ""
    )
    bandwidth = results["bandwidth"]
    low, high = min(bandwidth["rounds"]), max(bandwidth["rounds"])
    return (
        f"Measured on {results['date']}, in one run of {results['minutes']:.0f} minutes: "
        f"{machine['processor']} (family {machine['family'][0]}, model {machine['family'][1]}"
        f"{', a virtual machine' if machine['virtual'] else ''}), {machine['cores']} cores, "
        f"{' '.join(machine['flags'])}, {machine['memory_gb']:.0f} GB of memory, "
        f"{machine['system']}; {versions}. Load average {loads[0]} at the start, {loads[1]} at the "
        f"end{busy}.\n\n"
        f"Model: {model['layers']} layers of {model['hidden']}, {model['heads']} heads, "
        f"{model['kv_heads']} for keys and values, {model['vocabulary']:,} tokens of which "
        f"{model['codes']:,} are codes, {model['parameters'] / 1e9:.2f} G parameters, random.\n\n"
        f"Memory gives {bandwidth['median'] / 1e9:.1f} GB/s ({low / 1e9:.1f} to {high / 1e9:.1f}, "
        f"{len(bandwidth['rounds'])} times between the rounds below): "
        f"{bandwidth['threads']} threads read {bandwidth['bytes'] >> 20} MiB. Medians of "
        f"{plan['rounds']} rounds of {plan['steps']} steps."
    )


def _tokens(results: Results) -> str:
    plan, tokens = results["plan"], results["tokens"]
    header = ["ms per token at past length", *(f"{past:,}" for past in plan["pasts"]), "reads"]
    rows = []
    for name, cells in tokens.items():
        row = [
            f"{cells[str(past)]['whole']:.1f} ({cells[str(past)]['graph']:.1f})"
            for past in plan["pasts"]
        ]
        rows.append([TITLES[name], *row, f"{results['reads'][name] / 1e9:.2f} GB"])
    rows += [
        [f"{TITLES[name]}: {reason}", *["-"] * len(plan["pasts"]), "-"]
        for name, reason in results["missing"].items()
    ]
    for name, cells in results["limit"].items():
        if name in {"compact", "phoonnx"}:
            row = [f"{cells[str(past)]:.1f}" for past in plan["pasts"]]
            rows.append([f"limit of the {_short(name)}", *row, ""])
    for name, cells in results["times_as_fast"].items():
        row = [f"{cells[str(past)]:.2f}" for past in plan["pasts"]]
        rows.append([f"compact graph, times as fast as {_short(name)}", *row, ""])
    return (
        "### Tokens\n\n"
        + _table(header, rows)
        + "\n\nA whole step, from code to code with sampling; in brackets the graph alone. The "
        "limit is what the weights and the cache of a step take to read at the bandwidth above. "
        "Times as fast: median of the rounds' own ratios."
    )


def _short(name: str) -> str:
    return TITLES[name].replace("phoonnx's own engine", "phoonnx engine")


def _prefill(results: Results) -> str:
    counts = results["plan"]["prefills"]
    rows = [
        [TITLES[name], *(f"{1e3 * cells[str(count)]:,.0f}" for count in counts)]
        for name, cells in results["prefill"].items()
    ]
    header = ["ms for a prompt of", *(f"{count} tokens" for count in counts)]
    return "### Prompt\n\n" + _table(header, rows)


def _sentence(results: Results) -> str:
    found = results["sentence"]
    if not found:
        return ""
    own, host = found["own"], found["host"]
    rows = [
        [
            title,
            f"{spoken['first']:.2f} s",
            f"{spoken['whole']:.1f} s",
            f"{spoken['whole'] / spoken['sound']:.2f}",
        ]
        for title, spoken in (("this package", own), (TITLES["phoonnx"], host))
    ]
    return (
        "### A sentence\n\n"
        + _table(["", "first sound after", "all of it after", "real-time factor"], rows)
        + f"\n\n{own['sound']:.1f} s of sound, {host['prompt']} tokens of prompt with a preset of "
        f"{results['plan']['preset_codes']} codes. A second call with the same preset gives the "
        f"first sound after {found['own_again']:.2f} s."
    )


def _loading(results: Results) -> str:
    found = results["loading"]
    if not found:
        return ""
    rows = [
        [
            {**TITLES, **WHOLE}[name],
            f"{cost['seconds']:.2f} s",
            f"{cost['anonymous'] / 1e9:.2f} GB",
            f"{cost['anonymous_used'] / 1e9:.2f} GB" if name in TITLES else "",
            f"{cost['peak'] / 1e9:.2f} GB",
        ]
        for name, cost in found.items()
    ]
    header = ["", "loaded in", "own memory", "in use", "most resident"]
    return (
        "### Loading and memory\n\n"
        + _table(header, rows)
        + "\n\nEach in a process of its own, the files in the page cache, imports done. Own memory "
        "is anonymous and what loading added; in use is the same after 300 tokens of prompt and 5 "
        "steps; resident counts mapped pages of the files too, which the system may drop. The "
        "first load of a bundle ever, with the proof of the compact graph, took "
        f"{results['first_load']:.1f} s."
    )


def _codec(results: Results) -> str:
    if not results["sentence"]:
        return ""
    timings = results["sentence"]["codec"]
    rows = [["ms", *(f"{1e3 * seconds:.0f}" for seconds in timings.values())]]
    return "### Codec\n\n" + _table(["codes", *timings], rows)


def _sampling(results: Results) -> str:
    if not results["sampling"]:
        return ""
    rows = [
        [
            case,
            f"{row['kept']:,}",
            *("-" if (ms := row[name]) is None else f"{ms:.2f}" for name in list(row)[1:]),
        ]
        for case, row in results["sampling"].items()
    ]
    header = ["ms per step", "kept", "ours", "transformers", "phoonnx"]
    return "### Sampling\n\n" + _table(header, rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def draw(results: Results, path: Path) -> None:
    """Milliseconds per token over the past length, and when the first sound comes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    pasts = results["plan"]["pasts"]
    for name, cells in results["tokens"].items():
        left.plot(pasts, [cells[str(p)]["whole"] for p in pasts], "o-", label=TITLES[name])
    limit = results["limit"]["compact"]
    left.plot(pasts, [limit[str(p)] for p in pasts], "k--", label="limit of the compact graph")
    left.set(xlabel="tokens in the cache", ylabel="ms per token", ylim=(0, None))
    left.grid(alpha=0.3)
    left.legend(fontsize=7, **_BELOW)
    if results["sentence"]:
        own, host = results["sentence"]["own"], results["sentence"]["host"]
        labels = ["this package", "phoonnx's\nown engine"]
        right.barh(labels, [own["whole"], host["whole"]], color="0.8", label="the whole sentence")
        right.barh(labels, [own["first"], host["first"]], height=0.4, label="first sound")
        right.set(xlabel=f"seconds for {own['sound']:.0f} s of sound")
        right.invert_yaxis()
        right.legend(fontsize=7, **_BELOW)
    else:
        right.set_axis_off()
    figure.savefig(path, metadata={"Software": None})


def _write(path: Path, text: str) -> None:
    with atomic_writer(path) as stream:
        stream.write(text.encode())


def main(arguments: list[str] | None = None) -> None:
    """Write the report of an earlier run again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("results", type=Path, help="the JSON of a run")
    parser.add_argument("--output", type=Path, default=Path("docs"))
    given = parser.parse_args(arguments)
    write_report(json.loads(given.results.read_text()), given.output)


if __name__ == "__main__":
    main()
