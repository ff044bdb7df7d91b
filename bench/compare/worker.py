"""A peer's side of the comparison: answers the commands that regard_worker.cpp describes.

usage: worker.py PEER THREADS [COMMAND], with PEER one of the keys of `peers` below; started by peers.py in the peers'
virtual environment. With a command as an argument it answers that one and ends.
"""
import gc
import importlib
import json
import os
import sys
import time
from pathlib import Path

peers = {"torch": "torch_peer", "torch.compile": "torch_peer", "jax": "jax_peer"}


def status_kib(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/status has no " + field)


def reset_peak():
    """After this VmHWM counts afresh, where the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return True
    except OSError:
        return False


class Worker:
    def __init__(self, peer, threads):
        self.peer = importlib.import_module(peers[peer]).Peer(peer, threads)
        self.work = None

    def timed_steps(self, steps):
        if self.work is None:
            raise RuntimeError("nothing is open")
        step = self.work.step
        wait = getattr(self.work, "synchronize", None)
        if wait:
            wait()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        if wait:
            wait()
        return time.perf_counter() - begin

    def answer(self, command):
        what = command["do"]
        if what == "hello":
            return self.peer.hello()
        if what == "close":
            self.work = None
            gc.collect()
            getattr(self.peer, "close", lambda: None)()
            return {}
        if what == "open":
            self.work = None
            gc.collect()
            self.work = self.peer.open(command)
            return {"check": self.work.check(command.get("check", 0))}
        if what == "run":
            seconds = self.timed_steps(command["steps"])
            return {**self.work.results(), "seconds": seconds}
        if what == "memory" and getattr(self.work, "device", None) is not None and self.work.device.type == "cuda":
            self.timed_steps(1)  # the state of its optimizer is there
            before = self.work.reset_peak()
            self.timed_steps(command["steps"])
            return {"before_kib": before >> 10, "peak_kib": self.work.peak() >> 10, "reset": True}
        if what == "memory":
            reset = reset_peak()
            before = status_kib("VmRSS")
            self.timed_steps(command["steps"])
            return {"before_kib": before, "peak_kib": status_kib("VmHWM"), "reset": reset}
        raise ValueError("no command is called " + what)


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    worker = Worker(sys.argv[1], int(sys.argv[2]))
    for line in sys.argv[3:4] or sys.stdin:
        try:
            reply = worker.answer(json.loads(line))
        except Exception as error:  # the driver decides what to do without this peer
            text = (str(error).strip() or repr(error)).splitlines()
            reply = {"error": f"{type(error).__name__}: {text[0] if text else ''}"[:400]}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
