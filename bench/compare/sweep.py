"""How the cost of causal attention grows with the length of the sequence, 64 to 8192: time and peak memory of a forward
and backward pass, Regard beside the peers. Written to sweep.json and sweep.svg, both axes of the chart logarithmic.
"""
import json
import math
import time
from html import escape
from pathlib import Path

from contenders import Contender, Failure, warn
from rows import attention, median

lengths = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
contenders = ("regard", "torch", "jax")
colours = ("#2b6cb0", "#c05621", "#2f855a")


def available_mib():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    return math.inf


def open_at(contender, length, threads, setup, opened):
    """A contender of its own with the work open, and the memory of its first two steps in MiB."""
    worker = Contender(contender, threads, setup)
    opened.append(worker)
    load = {} if contender == "regard" else {"load": setup.weights}
    worker.ask({"do": "open", "check": 0, **load, **attention(1, length, 512, 8, causal=True)})
    answer = worker.ask({"do": "memory", "steps": 2})
    return worker, (answer["peak_kib"] - answer["before_kib"]) / 1024


def measure_length(length, setup, threads, last, opened):
    """The points of one length: memory of the first steps, then milliseconds, taking turns. `last` has the memory of
    the length before, by contender."""
    saver = Contender("regard", threads, setup)
    opened.append(saver)
    saver.ask({"do": "open", "check": 0, "save": setup.weights, **attention(1, length, 512, 8, causal=True)})
    saver.stop()
    found, count = {}, {}
    for contender in contenders:
        if setup.missing(contender):
            continue
        if 4 * last.get(contender, 0) > 0.7 * available_mib():
            warn(f"{contender} at {length}: left out, four times the memory before is more than there is")
            continue
        try:
            worker, peak = open_at(contender, length, threads, setup, opened)
            count[worker] = max(1, math.ceil(0.1 / max(1e-6, worker.run(1)["seconds"])))
        except Failure as failure:
            warn(f"{contender} at {length}: {failure}")
            continue
        last[contender] = peak
        found[worker] = {"work": f"attention 1x{length}x512 causal, 8 heads", "by": worker.name, "length": length,
                         "threads": threads, "peak_mib": peak, "samples": []}
    for _ in range(3):
        for worker, point in list(found.items()):
            time.sleep(0.02)
            try:
                point["samples"].append(1e3 * worker.run(count[worker])["seconds"] / count[worker])
            except Failure as failure:
                warn(f"{worker.name} at {length}: {failure}")
                del found[worker]
    for point in found.values():
        point["ms"] = median(point["samples"])
    return list(found.values())


def measure(setup, threads, facts, unfinished):
    """All points. Those so far are in the folder `unfinished` while it runs."""
    points, last = [], {}
    for length in lengths:
        opened = []
        try:
            found = measure_length(length, setup, threads, last, opened)
        except Failure as failure:
            warn(f"length {length}: {failure}")
            continue
        finally:
            for worker in opened:
                worker.stop()
        points += [{**point, **facts} for point in found]
        write(unfinished, points)
        print(f"length {length}: " + "; ".join(f"{p['by']} {p['ms']:.3g} ms, {p['peak_mib']:.3g} MiB" for p in found),
              flush=True)
    return points


def panel(points, field, title, left):
    width, height, top = 330, 300, 60
    names = list(dict.fromkeys(p["by"] for p in points))
    shown = [p for p in points if p[field] > 0]
    if not shown:
        return []
    low, high = min(p[field] for p in shown) / 1.5, max(p[field] for p in shown) * 1.5
    x = lambda length: left + width * math.log(length / lengths[0]) / math.log(lengths[-1] / lengths[0])
    y = lambda value: top + height * (1 - math.log(value / low) / math.log(high / low))
    parts = [f'<text x="{left}" y="44" font-size="14">{title}</text>']
    for exponent in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        value = 10.0**exponent
        if low <= value <= high:
            at = f"{y(value):.1f}"
            parts.append(f'<line x1="{left}" x2="{left + width}" y1="{at}" y2="{at}" stroke="#e2e8f0"/>')
            parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for length in lengths:
        at = f"{x(length):.1f}"
        parts.append(f'<line x1="{at}" x2="{at}" y1="{top}" y2="{top + height}" stroke="#edf2f7"/>')
        parts.append(f'<text x="{at}" y="{top + height + 16}" text-anchor="middle">{length}</text>')
    for name, colour in zip(names, colours):
        line = [(x(p["length"]), y(p[field])) for p in shown if p["by"] == name]
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in line)
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in line]
    return parts


def svg(points):
    names = list(dict.fromkeys(p["by"] for p in points))
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="860" height="430" viewBox="0 0 860 430" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
        '<text x="12" y="20" font-size="16">Causal attention, width 512, 8 heads, forward and backward, '
        "by the length of the sequence</text>",
        *panel(points, "ms", "milliseconds", 60),
        *panel(points, "peak_mib", "MiB at the peak, beyond those before", 490),
    ]
    for i, (name, colour) in enumerate(zip(names, colours)):
        parts.append(f'<rect x="{60 + 220 * i}" y="402" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{78 + 220 * i}" y="412">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def write(folder, points):
    (folder / "sweep.json").write_text(json.dumps(points, indent=1) + "\n")
    (folder / "sweep.svg").write_text(svg(points))


def forget(folder):
    for name in ("sweep.json", "sweep.svg"):
        (folder / name).unlink(missing_ok=True)
