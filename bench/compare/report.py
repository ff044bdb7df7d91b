"""What a run leaves: peers.json (everything), peers.md (a table) and peers.svg (a chart)."""
import json
import math
from html import escape


def entry(result, facts, limit_rates):
    """A row of peers.json."""
    return {
        "work": result.row.name,
        "threads": result.threads,
        **facts,
        "losses": result.losses,
        "not_measured": result.not_measured,
        "steps": result.steps or None,
        "samples": result.samples,
        "samples_unit": "MiB" if result.row.kind == "memory" else "ms",
        "limit_gflops": limit_rates,
        "load": getattr(result, "load", None),
    }


def time_text(ms):
    if ms is None:
        return "-"
    for unit, size in (("s", 1e3), ("ms", 1), ("us", 1e-3)):
        if ms >= size:
            return f"{ms / size:#.3g} {unit}".replace(". ", " ")
    return f"{ms * 1e6:.0f} ns"


def memory_text(mib):
    return "-" if mib is None else f"{mib:.3g} MiB" if mib < 1000 else f"{mib:.0f} MiB"


def amounts(e):
    """Regard's, the peers', and how to write one."""
    if e["regard_peak_mib"] is not None or e["peer_peak_mib"]:
        return e["regard_peak_mib"], e["peer_peak_mib"], memory_text
    return e["regard_ms"], e["peer_ms"], time_text


def verdict(e):
    return {True: "met", False: "missed", None: "not measured"}[e["met"]]


def ratio_text(e):
    return "-" if e["ratio"] is None else f"{e['ratio']:.2f}x"


def share_text(e):
    return "-" if e["share_of_limit"] is None else f"{100 * e['share_of_limit']:.0f}%"


def rates(best):
    return ", ".join(f"{name}: {rate:.1f} GFLOP/s" for name, rate in best.items()) or "not measured"


def threads_text(count):
    return f"{count} thread{'s' if count > 1 else ''}"


def line(result, facts):
    mine, peers, text = amounts(facts)
    others = ", ".join(f"{name} {text(value)}" for name, value in peers.items())
    return f"{result.row.name}: Regard {text(mine)}; {others or 'no peer'}; {ratio_text(facts)}, {verdict(facts)}"


def family(name):
    """A peer's name without its version: the table's column."""
    for known in ("torch eager", "torch.compile", "JAX jit", "plain C++"):
        if name.startswith(known):
            return known
    return name


def markdown(entries):
    first = entries[0]
    columns = [
        c
        for c in ("torch eager", "torch.compile", "JAX jit", "plain C++")
        if any(family(name) == c for e in entries for name in amounts(e)[1])
    ]
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items() if name != "computing")
    limits = {e["threads"]: e["limit_gflops"] for e in entries}
    lines = [
        "# Regard beside its peers",
        "",
        "Written by `./run bench --peers" + (" --quick" if first["quick"] else "") + "`; bench/README.md says how to "
        "read it.",
        "",
        f"- {first['started']}, commit {first['commit'][:12]}{'+changes' if '+' in first['commit'] else ''}",
        f"- {first['processor']}; {first['versions'].get('computing', '')}",
        f"- {versions}",
    ]
    if first.get("resumed"):
        lines.append(f"- broken off, and gone on with: {', '.join(first['resumed'])}")
    for threads, best in limits.items():
        lines.append(f"- limit, {threads_text(threads)}: the best of {rates(best)}")
    lines += [
        "",
        f"| work | threads | Regard | {' | '.join(columns)} | best peer / Regard | of the limit | target | |".replace(
            "|  |", "|"
        ),
        "|---|---|---|" + "---|" * len(columns) + "---|---|---|---|",
    ]
    for e in entries:
        mine, peers, text = amounts(e)
        by_family = {family(name): text(value) for name, value in peers.items()}
        cells = [e["work"], str(e["threads"]), text(mine), *(by_family.get(c, "-") for c in columns)]
        cells += [ratio_text(e), share_text(e), e["target"], verdict(e)]
        lines.append("| " + " | ".join(cells) + " |")
    notes = []
    for e in entries:
        row = f"- {e['work']}, {threads_text(e['threads'])}"
        for name, reason in e["not_measured"].items():
            notes.append(f"{row}, {name}: {reason}")
        if e["losses"]:
            losses = ", ".join(f"{name} {loss:.4f}" for name, loss in e["losses"].items())
            notes.append(f"{row}: {e['steps']} steps; mean loss of the last 100: {losses}")
    if notes:
        lines += ["", "Notes, and what is not measured:", "", *notes]
    return "\n".join(lines) + "\n"


def svg(entries):
    """A bar a row: how many times the best peer's time (or PyTorch's memory) Regard's goes into, on a log scale."""
    shown = [e for e in entries if e["ratio"]]
    left, width, step, top = 400, 420, 24, 64
    height = top + step * len(shown) + 40
    ratios = [e["ratio"] for e in shown] or [1]
    low = min(0.5, *(r / 1.2 for r in ratios), 0.5)
    high = max(4, *(r * 1.2 for r in ratios), 4)
    x = lambda ratio: left + width * math.log(ratio / low) / math.log(high / low)
    colours = {True: "#2f855a", False: "#c05621", None: "#718096"}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 150}" height="{height}" '
        f'viewBox="0 0 {left + width + 150} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="12" y="24" font-size="16">The best peer over Regard: time of a step (memory: PyTorch\'s peak)</text>',
        '<text x="12" y="44" fill="#4a5568">To the right of 1 Regard is ahead. Green: target met; orange: missed. '
        "Beside the bars the ratio, and the share of the multiply-add limit.</text>",
    ]
    for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if low <= tick <= high:
            colour, bottom = ("#1a202c" if tick == 1 else "#e2e8f0"), height - 28
            at = f"{x(tick):.1f}"
            parts.append(f'<line x1="{at}" x2="{at}" y1="{top - 6}" y2="{bottom}" stroke="{colour}"/>')
            parts.append(f'<text x="{at}" y="{height - 12}" text-anchor="middle">{tick:g}x</text>')
    for i, e in enumerate(shown):
        y = top + step * i
        begin, end = sorted((x(1), x(e["ratio"])))
        label = ratio_text(e) + (f", {share_text(e)} of the limit" if e["share_of_limit"] else "")
        name = f"{e['work']}, {threads_text(e['threads'])}"
        parts.append(
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end" textLength="{min(left - 16, 6 * len(name))}" '
            f'lengthAdjust="spacingAndGlyphs">{escape(name)}</text>'
        )
        parts.append(
            f'<rect x="{begin:.1f}" y="{y + 2}" width="{max(1, end - begin):.1f}" height="{step - 8}" '
            f'fill="{colours[e["met"]]}"/>'
        )
        parts.append(f'<text x="{max(end, x(1)) + 6:.1f}" y="{y + 13}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


files = ("peers.json", "peers.md", "peers.svg")


def write(folder, entries):
    """Each file whole or not at all."""
    whole = json.dumps(entries, indent=1) + "\n"
    for name, text in zip(files, (whole, markdown(entries), svg(entries))):
        part = folder / (name + ".part")
        part.write_text(text)
        part.replace(folder / name)
