"""Regard beside PyTorch and JAX: every row of rows.py, all contenders taking turns in one run on one machine.

Run by ./run bench --peers; bench/README.md says how to read what it writes.
"""
import argparse
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import characters
import environment
import report
import sweep
from contenders import Contender, Failure, command_of, popen, warn
from progress import Mismatch, Progress
from rows import Result, all_rows, derived, minutes, multiply_adds, toy
from rows import characters as character_options


@dataclass
class Setup:
    build: Path
    python: Path
    scratch: Path  # kept from run to run: what torch.compile compiled
    work: Path  # of this run alone
    logs: Path
    quick: bool
    end: float  # of the time for the whole run
    reasons: dict  # why a package is not there

    def missing(self, peer):
        return self.reasons.get(environment.packages.get(peer))

    @property
    def weights(self):
        return str(self.work / "weights.safetensors")


class Limit:
    """The best rate of a 2048^3 product, whoever reached it, in GFLOP/s."""

    size = 2048

    def __init__(self, best):
        self.best = best

    def measure(self, contenders, times):
        for contender in contenders:
            if contender.contender not in ("regard", "torch", "jax"):
                continue
            try:
                contender.ask({"do": "open", "work": "sgemm", "size": self.size})
                seconds = min(contender.run(1)["seconds"] for _ in range(times + 1))
                contender.ask({"do": "close"})
            except Failure as failure:
                warn(f"{contender.name}: {failure}")
                continue
            rate = 2e-9 * self.size**3 / seconds
            self.best[contender.name] = max(rate, self.best.get(contender.name, 0))

    @property
    def gflops(self):
        return max(self.best.values(), default=None)


def agree(a, b, tolerance=5e-3):
    return len(a) == len(b) and all(abs(x - y) <= tolerance * max(abs(x), abs(y), 1e-3) for x, y in zip(a, b))


def open_all(row, options, workers, result, setup, check):
    """Regard first, whose weights the others load. Those that came to the same numbers as Regard."""
    opened = []
    wanted = [w for w in workers if w.contender == "regard" or w.contender in row.peers]
    expected = None
    for worker in wanted:
        command = {"do": "open", "check": check, **options}
        if worker.contender == "regard":
            if options["work"] not in ("tiny add",):
                command["save"] = setup.weights
        else:
            command["load"] = setup.weights
            if worker.contender == "plain":
                command["work"] = "plain gpt"
        try:
            got = worker.ask(command, 1200)["check"]
            if worker.contender == "regard":
                expected = got
            elif not agree(expected, got):
                raise Failure(f"came to other numbers: {got}, and Regard to {expected}")
            opened.append(worker)
        except Failure as failure:
            result.not_measured[worker.name] = str(failure)
            warn(f"{worker.name}: {failure}")
            if worker.contender == "regard":
                return []
    return opened


def close_all(opened):
    for worker in opened:
        try:
            worker.ask({"do": "close"})
        except Failure:
            pass


def measure_steps(row, workers, result, setup):
    opened = open_all(row, row.options, workers, result, setup, row.check)
    batch_seconds, rounds, budget = (0.1, 3, 10) if setup.quick else (0.2, 7, 30)
    steps = {}
    for worker in list(opened):
        try:
            taken = worker.run(1)["seconds"]  # warm, so the next is worth counting
            few = max(1, min(1000, math.ceil(0.02 / max(taken, 1e-7))))
            taken = worker.run(few)["seconds"] / few
            steps[worker] = max(1, min(1_000_000, math.ceil(batch_seconds / max(taken, 1e-8))))
        except Failure as failure:
            drop(worker, opened, result, failure)
    begin = time.monotonic()
    for turn in range(rounds):
        if turn >= 3 and time.monotonic() - begin > budget:
            break
        shift = turn % max(1, len(opened))
        for worker in opened[shift:] + opened[:shift]:
            count = row.steps if row.steps and worker.contender == "regard" else steps[worker]
            time.sleep(0.02)  # threads of the one before have stopped to spin
            try:
                seconds = worker.run(count)["seconds"]
                result.samples.setdefault(worker.name, []).append(1e3 * seconds / count)
            except Failure as failure:
                drop(worker, opened, result, failure)
    close_all(opened)


def drop(worker, opened, result, failure):
    opened.remove(worker)
    result.samples.pop(worker.name, None)
    result.not_measured[worker.name] = str(failure)
    warn(f"{worker.name}: {failure}")


def measure_characters(row, workers, result, setup):
    steps, part = (200, 50) if setup.quick else (2000, 100)
    made = characters.make(setup.work, steps)
    if made is None:
        result.not_measured["all"] = f"{characters.licences} has no licences"
        return
    options = character_options(made[0], steps, *made[1:])
    row.multiply_adds = multiply_adds({**options, "work": "gpt"})
    result.steps = steps
    opened = open_all(row, options, workers, result, setup, 0)
    seconds, losses = {}, {}
    for turn in range(steps // part):
        shift = turn % max(1, len(opened))
        for worker in opened[shift:] + opened[:shift]:
            time.sleep(0.02)
            try:
                answer = worker.run(part)
                seconds[worker.name] = seconds.get(worker.name, 0) + answer["seconds"]
                losses.setdefault(worker.name, []).extend(answer["losses"])
            except Failure as failure:
                seconds.pop(worker.name, None)
                losses.pop(worker.name, None)
                drop(worker, opened, result, failure)
    close_all(opened)
    for name, total in seconds.items():
        result.samples[name] = [1e3 * total]
        result.losses[name] = statistics.fmean(losses[name][-100:])


def measure_memory(row, names, result, setup, threads):
    """Each in a process of its own: most memory while three steps ran, less what there was before the first."""
    for contender in ("regard", *row.peers):
        if setup.missing(contender):
            continue
        worker = None
        try:
            worker = Contender(contender, threads, setup)
            command = {"do": "open", "check": 0, **row.options}
            if contender == "regard":
                # Saving reads every weight and leaves memory behind: a second process measures.
                worker.ask({**command, "save": setup.weights})
                worker.stop()
                worker = Contender(contender, threads, setup)
            else:
                command["load"] = setup.weights
            worker.ask(command)
            answer = worker.ask({"do": "memory", "steps": 3})
            if not answer["reset"]:
                warn(f"{worker.name}: the peak counts from the process's start (/proc/self/clear_refs is not writable)")
            result.samples[worker.name] = [(answer["peak_kib"] - answer["before_kib"]) / 1024]
        except Failure as failure:
            result.not_measured[names.get(contender, contender)] = str(failure)
            warn(f"{names.get(contender, contender)}: {failure}")
        finally:
            if worker:
                worker.stop()


def until(command, threads, setup, line_start, **more):
    """Milliseconds from the start of a program to its first line of output that starts so."""
    begin = time.perf_counter()
    process = popen(command, threads, setup.scratch, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **more)
    taken = None
    for line in process.stdout:
        if line.startswith(line_start):
            taken = time.perf_counter() - begin
            process.kill()
            break
    process.stdout.close()
    status = process.wait()
    if taken is None:
        raise Failure(f"{Path(command[0]).name} ended with status {status} and no line that starts with {line_start}")
    return 1e3 * taken


def measure_start_up(row, names, result, setup, threads):
    """Regard: train_sequence up to the line of its first step. A peer: importing it, making the toy model, a step."""
    rounds = 3 if setup.quick else 9
    make = Contender("regard", threads, setup)
    make.ask({"do": "open", "save": setup.weights, **toy})
    make.stop()
    command = json.dumps({"do": "open", "check": 1, "load": setup.weights, **toy})
    for turn in range(rounds):
        for contender in ("regard", *row.peers):
            name = names.get(contender, contender)
            if setup.missing(contender) or name in result.not_measured or (contender != "regard" and turn > 2):
                continue
            try:
                if contender == "regard":
                    program = [setup.build / "examples" / "train_sequence", "--steps", 100, "--threads", threads]
                    with tempfile.TemporaryDirectory(dir=setup.work) as folder:
                        taken = until(program, threads, setup, b"step ", cwd=folder)
                else:
                    taken = until(command_of(contender, threads, setup) + [command], threads, setup, b'{"check"')
                result.samples.setdefault(name, []).append(taken)
            except Failure as failure:
                result.not_measured[name] = str(failure)
                warn(f"{name}: {failure}")


def measure_row(row, threads, workers, names, setup, limit):
    result = Result(row, threads, regard=names["regard"])
    result.load = os.getloadavg()[0]
    for peer in row.peers:
        if reason := setup.missing(peer):
            result.not_measured[names[peer]] = reason
    try:
        if row.kind == "steps":
            measure_steps(row, workers, result, setup)
            limit.measure(workers, 2)
        elif row.kind == "characters":
            measure_characters(row, workers, result, setup)
        elif row.kind == "memory":
            measure_memory(row, names, result, setup, threads)
        else:
            measure_start_up(row, names, result, setup, threads)
    except Exception as error:  # one row that fails is no reason to lose the others
        result.not_measured["all"] = f"{type(error).__name__}: {error}"
        warn(f"{row.name}: {result.not_measured['all']}")
    return result


def revive(workers, threads, setup):
    """Starts those again that died in an earlier row."""
    for i, worker in enumerate(workers):
        if worker.process.poll() is None:
            continue
        try:
            workers[i] = Contender(worker.contender, threads, setup)
        except Failure as failure:
            warn(f"{worker.name}: cannot be started again, {failure}")


def measure_all(rows, threads, setup, limit, progress):
    """Every row that is not measured yet. Whether all of them are, in the end."""
    rows_left = [row for row in rows if not progress.measured(row, threads)]
    if not rows_left:
        return True
    workers, names, versions = [], {}, {}
    peers = sorted({peer for row in rows_left for peer in row.peers})
    for contender in ("regard", *[p for p in ("torch", "torch.compile", "jax", "plain") if p in peers]):
        if reason := setup.missing(contender):
            names[contender] = contender
            warn(f"{contender}: not measured, {reason}")
            continue
        try:
            worker = Contender(contender, threads, setup)
        except Failure as failure:
            if contender == "regard":
                raise
            setup.reasons[environment.packages.get(contender, contender)] = str(failure)
            names[contender] = contender
            warn(f"{contender}: not measured, {failure}")
            continue
        workers.append(worker)
        names[contender] = worker.name
        if contender == "regard":
            versions["computing"] = worker.hello["computing"].splitlines()[0]
        if contender != "plain":
            versions[worker.hello["name"]] = worker.hello["version"]
    try:
        progress.check_versions(versions)
        limit.measure(workers, 8)
        for row in rows_left:
            if time.monotonic() > setup.end:
                print("the time for the whole run is up", flush=True)
                return False
            begin = time.monotonic()
            revive(workers, threads, setup)
            result = measure_row(row, threads, workers, names, setup, limit)
            progress.keep(result)
            taken = time.monotonic() - begin
            print(f"{report.line(result, derived(result, limit.gflops))}   [{taken:.0f} s]", flush=True)
        return True
    finally:
        for worker in workers:
            worker.stop()


def main():
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(
        prog="./run bench --peers", description="Times Regard beside PyTorch and JAX, all in one run, taking turns."
    )
    parser.add_argument("--quick", action="store_true", help="about 11 minutes: fewer rounds, without the largest rows")
    parser.add_argument("--rows", metavar="REGEX", default="", help="only the rows whose name has it (any case)")
    parser.add_argument("--threads", metavar="LIST", help="numbers of threads (default: 1,2 where there are two cores)")
    parser.add_argument("--minutes", type=float, help="start no row after so many (default: 60; quick: 20)")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was broken off, with the same "
                        "options and on the same commit: what it measured is kept")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where results go (default: bench/results for a whole "
                        "run, build/peers/results for one that is quick or of some rows)")
    parser.add_argument("--python", metavar="FILE", help="a Python that has the peers, instead of build/peers-venv")
    parser.add_argument("--build", type=Path, default=root / "build" / "release", help=argparse.SUPPRESS)
    parser.add_argument("--sweep", action="store_true", help="instead of the rows: attention's time and memory by "
                        "length, 64 to 8192 (sweep.json, sweep.svg)")
    parser.add_argument("--list", action="store_true", help="list the rows and end")
    a = parser.parse_args()

    try:
        rows = [row for row in all_rows() if re.search(a.rows, row.name, re.IGNORECASE)]
    except re.error as error:
        parser.error(f"--rows {a.rows!r} is no regular expression: {error}")
    if a.sweep and (a.rows or a.resume):
        parser.error("--sweep measures no rows and cannot be gone on with: leave out --rows and --resume")
    if a.minutes is not None and not a.minutes > 0:
        parser.error(f"--minutes {a.minutes:g}: not more than 0")
    if a.list:
        print("\n".join(f"{row.name}: {row.target}" for row in rows))
        return 0
    if not rows:
        parser.error(f"no row has {a.rows!r} in its name; --list lists them")
    if a.quick:
        rows = [row for row in rows if not row.heavy]
        if not rows:
            parser.error(f"no row of a quick run has {a.rows!r} in its name: leave out --quick")
    cores = len(os.sched_getaffinity(0))
    try:
        counts = [int(n) for n in a.threads.split(",")] if a.threads else [2, 1] if cores >= 2 else [1]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        parser.error(f"--threads {a.threads!r}: wanted are numbers from 1 on, such as 1,2")
    if max(counts) > cores:
        parser.error(f"{max(counts)} threads on {cores} processors measure nothing")
    given_python = shutil.which(a.python) if a.python is not None else None
    if a.python is not None and not given_python:
        parser.error(f"--python {a.python!r} cannot be executed")
    scratch = root / "build" / "peers"
    whole = not a.quick and not a.rows and not a.threads
    out = a.out or (root / "bench" / "results" if whole else scratch / "results")
    logs = root / "build" / "log"
    for folder in (scratch, logs, out):
        folder.mkdir(parents=True, exist_ok=True)

    if given_python:
        python, reasons = Path(given_python).absolute(), {}
    else:
        python, reasons = environment.make(root / "build" / "peers-venv", logs)
    began = time.monotonic()
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    facts = {
        "commit": environment.commit(root),
        "processor": environment.processor(),
        "started": now,
        "quick": a.quick,
        "options": {"rows": a.rows, "threads": counts},
    }
    if "+" in facts["commit"]:
        goes_on = "--resume cannot go on, as the working tree has changes that no commit names"
    else:
        goes_on = "--resume goes on"
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"note: something else is running here (load {load:.1f}); times will be off", file=sys.stderr)
    unfinished = scratch / ("unfinished" if whole else "unfinished-part")
    unfinished.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as work:
        end = began + 60 * (a.minutes if a.minutes is not None else (20 if a.quick else 60))
        setup = Setup(a.build, python, scratch, Path(work), logs, a.quick, end, reasons)
        if a.sweep:
            print("lengths 64 to 8192, about 5 minutes", flush=True)
            points = sweep.measure(setup, counts[0], facts, unfinished)
            sweep.write(out, points)
            sweep.forget(unfinished)
            print(f"results in {out} (sweep.json, sweep.svg), after {(time.monotonic() - began) / 60:.1f} minutes")
            return 0
        progress = Progress(unfinished, facts, {"Python": platform.python_version()})
        try:
            if a.resume:
                progress.resume(rows, now)
            elif old := progress.set_aside():
                print(f"note: an earlier run was broken off; what it measured is now in {old}", file=sys.stderr)
            left = {n: [row for row in rows if not progress.measured(row, n)] for n in counts}
            expected = sum(minutes(row, n, a.quick) for n in counts for row in left[n])
            print(f"{sum(len(of) for of in left.values())} rows, about {math.ceil(expected)} min. What is measured is "
                  f"in {unfinished} row by row; if it is broken off, {goes_on}", flush=True)
            whole = True
            for threads in counts:
                print(f"== {threads} thread{'s' if threads > 1 else ''}", flush=True)
                limit = Limit(progress.limits.setdefault(threads, {}))
                whole = measure_all(rows, threads, setup, limit, progress) and whole
                progress.save()
                print("limit " + report.rates(limit.best), flush=True)
        except Mismatch as mismatch:
            print(f"peers: {mismatch}", file=sys.stderr)
            return 2
        except Failure as failure:  # of Regard itself
            print(f"peers: Regard: {failure} (see {logs})", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"\nbroken off; {len(progress.results)} rows are in {unfinished}; {goes_on}", file=sys.stderr)
            return 130
    progress.results.sort(key=lambda r: (counts.index(r.threads) if r.threads in counts else len(counts),
                                         next((i for i, row in enumerate(rows) if row is r.row), len(rows))))
    if not progress.results:
        print("no row was measured")
        return 1
    where = out if whole else unfinished
    report.write(where, progress.entries())
    if whole:
        progress.finish()
    print(f"\n{(where / 'peers.md').read_text()}")
    print(f"results in {where} (peers.json, peers.md, peers.svg), after {(time.monotonic() - began) / 60:.1f} minutes"
          + ("" if whole else f"; not all rows are there: {goes_on}"))
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
