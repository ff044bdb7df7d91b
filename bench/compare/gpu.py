#!/usr/bin/env python3
"""Regard beside PyTorch on one GPU: attention and training steps of the comparison's rows, and GPT-2 124M at batch 32
and 1024 tokens in bf16. Milliseconds, tokens a second, the share of the GPU's matrix rate, which is measured in the same
run, and the most memory. Writes gpu.json, after each row anew, and gpu.md to --out.

usage: gpu.py --worker build/bench/regard_worker --out FOLDER [options]; needs a Python with PyTorch and NumPy, and a
Regard built with REGARD_CUDA=ON. Contenders work one after the other, so that each has all of the GPU's memory.
"""
import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from contenders import Contender, Failure, warn
from rows import attention, attention_2048, attention_2048_causal, gpt, gpt2, median, medium, multiply_adds, small, toy

# How far numbers of the first steps may be apart: of themselves, by precision. Sums of many products of both signs, as
# attention's first is, are held against the largest of the row's numbers.
tolerances = {"f32": 2e-3, "tf32": 2e-2, "bf16": 5e-2}
samples = 5


@dataclass
class Row:
    name: str
    options: dict
    precision: str = "f32"
    compiled: bool = False  # beside torch.compile, too, which takes its time


@dataclass
class Setup:  # what contenders.Contender reads
    worker: Path
    python: str
    scratch: Path
    logs: Path
    gpu: bool = True

    @property
    def build(self):
        return self.worker.parent.parent


def rows(tiny):
    if tiny:  # to try this program where there is no GPU
        return [
            Row("GPT tiny, bf16", gpt(2, 8, 11, 16, 2, 1, tied=True, positions=16), "bf16", True),
            Row("GPT tiny", gpt(2, 8, 11, 16, 2, 1)),
            Row("attention tiny", attention(2, 3, 8, 2, causal=True)),
            Row("attention tiny, bf16", attention(2, 3, 8, 2), "bf16"),
        ]
    gpt2_full = gpt(32, 1024, 50257, 768, 12, 12, tied=True, positions=1024)
    return [
        Row("GPT-2 124M step B32 T1024, bf16", gpt2_full, "bf16", True),
        Row("GPT step 8,256,65,384,6,6, bf16", medium, "bf16"),
        Row("GPT step 8,256,65,384,6,6", medium),
        Row("GPT-2 124M step B4 T64, bf16", gpt2, "bf16"),
        Row("GPT-2 124M step B4 T64", gpt2),
        Row("GPT step 12,64,65,128,4,4", small),
        Row("GPT step B16 T16 V16 E32 H4 L2", toy),
        Row("attention 1x2048x512 causal, 8 heads", attention_2048_causal),
        Row("attention 1x2048x512 causal, 8 heads, bf16", attention_2048_causal, "bf16"),
        Row("attention 1x2048x512 full, 8 heads", attention_2048),
        Row("attention 1x2048x512 full, 8 heads, bf16", attention_2048, "bf16"),
        Row("attention 8x128x512, 8 heads", attention(8, 128, 512, 8)),
        Row("attention 4x10x512, 8 heads", attention(4, 10, 512, 8)),
        Row("attention 2x3x6, 2 heads", attention(2, 3, 6, 2)),
        Row("GPT-2 124M step B32 T1024, tf32", gpt2_full, "tf32"),
    ]


def timed(worker, seconds):
    """Milliseconds of a step, `samples` times: each of as many steps as take a fifth of `seconds`, three at least."""
    worker.run(3)
    steps, once = 1, worker.run(1)["seconds"]
    while once < 0.02 and steps < 4096:  # many short steps queue up: one alone says little
        steps *= 4
        once = worker.run(steps)["seconds"]
    steps = max(3, min(20000, int(seconds / samples / (once / steps))))
    return [1e3 * worker.run(steps)["seconds"] / steps for _ in range(samples)], steps


def apart(mine, theirs):
    """How far, of the largest; infinitely far where one is missing, or is no finite number."""
    if not mine or not theirs or len(mine) != len(theirs):
        return math.inf
    if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in mine + theirs):
        return math.inf
    largest = max(abs(x) for x in mine + theirs)
    return max(abs(a - b) for a, b in zip(mine, theirs)) / largest if largest else 0


def measured(worker, row, options, seconds, check):
    """Opens, checks, times and closes; what came out."""
    begin = time.monotonic()
    result = {"check": worker.ask({"do": "open", **row.options, **options, "check": check}, 300)["check"]}
    result["ms"], result["steps"] = timed(worker, seconds)
    memory = worker.ask({"do": "memory", "steps": 2})
    result["peak_mib"] = memory["peak_kib"] / 1024
    result["seconds"] = time.monotonic() - begin
    worker.ask({"do": "close"})
    return result


class Contenders:
    """Started when they are first needed, and again after they ended."""

    def __init__(self, setup, devices, threads):
        self.setup, self.devices, self.threads, self.all = setup, devices, threads, {}

    def get(self, name):
        if name not in self.all:
            self.all[name] = Contender(name, self.threads, self.setup)
        return self.all[name]

    def device(self, name):
        return self.devices["regard" if name == "regard" else "torch"]

    def drop(self, name):
        worker = self.all.pop(name, None)
        if worker:
            worker.stop()

    def stop(self):
        for name in list(self.all):
            self.drop(name)


def matrix_rates(contenders, size, report):
    """The best TFLOP/s of a square product in each precision, whoever reached it."""
    for precision in ("bf16", "tf32", "f32"):
        found = {}
        for name in ("torch", "regard"):
            options = {"work": "sgemm", "size": size, "precision": precision, "device": contenders.device(name)}
            try:
                worker = contenders.get(name)
                worker.ask({"do": "open", **options}, 300)
                ms, _ = timed(worker, 0.5)
                worker.ask({"do": "close"})
                found[name] = 2 * size**3 / min(ms) * 1e-9
            except Failure as failure:
                report["failures"].append(f"{size}^3 product in {precision}, {name}: {failure}")
                contenders.drop(name)
        report["matrix_tflops"][precision] = found


def compare(row, name, entry, contenders, seconds, report, weights):
    """Measures what `name` takes for a row, Regard first: the weights are its."""
    if name != "regard" and "regard" not in entry["results"]:
        return
    options = {"precision": row.precision, "device": contenders.device(name)}
    options["save" if name == "regard" else "load"] = weights
    check = 3 if row.options["work"] == "gpt" else 1
    try:
        result = measured(contenders.get(name), row, options, seconds, check)
    except Failure as failure:
        report["failures"].append(f"{row.name}, {name}: {failure}")
        contenders.drop(name)
        return
    entry["results"][name] = result
    result["median_ms"] = median(result["ms"])
    result["tokens_per_second"] = entry["tokens"] / result["median_ms"] * 1e3
    rate = max(report["matrix_tflops"].get(row.precision, {}).values(), default=None)
    result["share_of_matrix_rate"] = entry["tflop"] / result["median_ms"] * 1e3 / rate if rate else None
    if name != "regard":
        mine = entry["results"]["regard"]["check"]
        distance = apart(mine, result["check"])
        result["apart"] = distance if math.isfinite(distance) else None
        if not distance <= tolerances[row.precision]:
            report["failures"].append(
                f"{row.name}: Regard's numbers are {mine}, those of {name} {result['check']}: "
                f"{distance:.1e} apart, more than {tolerances[row.precision]}"
            )


def compare_all(chosen, contenders, args, end, report, folder, write):
    later = []
    for i, row in enumerate(chosen):
        if time.monotonic() > end:
            report["failures"].append(f"{row.name}: no time was left")
            continue
        entry = {
            "name": row.name,
            "precision": row.precision,
            "tflop": 2e-12 * multiply_adds(row.options),
            "tokens": row.options["batch"] * row.options["length"],
            "results": {},
        }
        report["rows"].append(entry)
        weights = Path(folder) / f"{i}.safetensors"
        for name in ("regard", "torch"):
            compare(row, name, entry, contenders, args.each, report, str(weights))
        if row.compiled and not args.no_compile:
            later.append((row, entry, str(weights)))
        else:
            weights.unlink(missing_ok=True)
        print("  " + line_of(entry), flush=True)
        write()
    contenders.drop("torch")
    for row, entry, weights in later:  # compiling takes its time: after all else
        if time.monotonic() > end:
            report["failures"].append(f"{row.name}, torch.compile: no time was left")
            continue
        compare(row, "torch.compile", entry, contenders, args.each, report, weights)
        print("  " + line_of(entry), flush=True)
        write()


def number(x, digits=3):
    return "" if x is None else f"{x:,.0f}" if x >= 100 else f"{x:.{digits}g}"


def line_of(entry):
    parts = []
    for name, result in entry["results"].items():
        share = result["share_of_matrix_rate"]
        parts.append(
            f"{name} {number(result['median_ms'])} ms"
            + (f", {100 * share:.0f}% of the matrix rate" if share is not None else "")
            + f", {number(result['tokens_per_second'])} tokens/s, peak {number(result['peak_mib'])} MiB"
        )
    return f"{entry['name']}: " + ("; ".join(parts) or "nothing measured")


def markdown(report):
    lines = [f"Regard {report['regard']} beside PyTorch {report['torch']} on {report['device']}.", ""]
    rates = (
        f"{precision} " + ", ".join(f"{name} {number(rate)}" for name, rate in found.items())
        for precision, found in report["matrix_tflops"].items()
        if found
    )
    lines.append(f"Products of {report['matrix_size']}^3, TFLOP/s: " + "; ".join(rates) + ".")
    lines += [
        "",
        "| step | by | ms (least to most) | tokens/s | share of the matrix rate | peak MiB | beside PyTorch |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in report["rows"]:
        eager = entry["results"].get("torch", {}).get("median_ms")
        for name, result in entry["results"].items():
            share = result["share_of_matrix_rate"]
            times = f"{eager / result['median_ms']:.2f}x" if eager and name != "torch" else ""
            lines.append(
                f"| {entry['name']} | {name} | {number(result['median_ms'])} ({number(min(result['ms']))} to "
                f"{number(max(result['ms']))}) | {number(result['tokens_per_second'])} | "
                f"{'' if share is None else f'{100 * share:.1f}%'} | {number(result['peak_mib'])} | {times} |"
            )
    if report["failures"]:
        lines += ["", "Not as it should be:", ""] + [f"- {failure}" for failure in report["failures"]]
    return "\n".join(lines) + "\n"


def device_name():
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip() or "unknown"
    except (OSError, subprocess.TimeoutExpired):
        return "no GPU that nvidia-smi knows"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", required=True, type=Path, help="the program regard_worker, in a folder `bench`")
    parser.add_argument("--out", required=True, type=Path, help="folder for gpu.json, gpu.md and the workers' logs")
    parser.add_argument("--python", default=sys.executable, help="a Python with PyTorch and NumPy")
    parser.add_argument("--seconds", type=float, default=240, help="no row is begun after so long")
    parser.add_argument("--each", type=float, default=1.0, help="seconds for which each contender is timed in a row")
    parser.add_argument("--rows", default="", help="a regular expression of the rows to measure")
    parser.add_argument("--device", default="cuda", help="for both: cuda, cuda:1, ...")
    parser.add_argument("--torch-device", help="another for PyTorch: cpu, to try this program without a GPU")
    parser.add_argument("--tiny", action="store_true", help="tiny rows, to try this program")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args()

    end = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    size = 64 if args.tiny else 8192
    report = {"device": device_name(), "regard": "", "torch": "", "matrix_size": size}
    report |= {"matrix_tflops": {}, "rows": [], "failures": []}

    def write():
        (args.out / "gpu.json").write_text(json.dumps(report, indent=1) + "\n")
        (args.out / "gpu.md").write_text(markdown(report))

    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        setup = Setup(args.worker.resolve(), args.python, Path(folder), logs)
        devices = {"regard": args.device, "torch": args.torch_device or args.device}
        contenders = Contenders(setup, devices, min(16, len(os.sched_getaffinity(0))))
        try:
            for name in ("regard", "torch"):
                try:
                    report[name] = contenders.get(name).hello["version"]
                except Failure as failure:
                    report["failures"].append(f"{name}: {failure}")
                    log = logs / f"{name}-{contenders.threads}.log"
                    if log.exists() and log.stat().st_size:
                        warn(log.read_text(errors="replace")[-2000:])
            if not report["failures"]:
                matrix_rates(contenders, size, report)
                print("  matrix rate, TFLOP/s: " + json.dumps(report["matrix_tflops"]), flush=True)
                write()
                chosen = [row for row in rows(args.tiny) if re.search(args.rows, row.name)]
                compare_all(chosen, contenders, args, end, report, folder, write)
        finally:
            contenders.stop()
            write()
    for failure in report["failures"]:
        warn(failure)
    measured_any = any("regard" in entry["results"] for entry in report["rows"])
    print(f"  {args.out}/gpu.md", flush=True)
    return 1 if report["failures"] or not measured_any else 0


if __name__ == "__main__":
    sys.exit(main())
