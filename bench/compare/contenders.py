"""Processes that answer commands, a line of JSON each: Regard's worker and the peers'."""
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

here = Path(__file__).resolve().parent


class Failure(Exception):
    """A contender that could not do what it was asked."""


def clean_environment(threads, scratch, gpu=False):
    """Nothing that someone set for threads or kernels stays, so that each library does what it does by itself. Without
    `gpu` no GPU is seen: the comparison is of CPUs."""
    owners = ("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "REGARD_", "XLA_", "JAX_", "TORCH")
    env = {key: value for key, value in os.environ.items() if not key.startswith(owners)}
    if not gpu:
        env["CUDA_VISIBLE_DEVICES"] = ""
    env["JAX_PLATFORMS"] = "cpu"
    env["NPROC"] = str(threads)  # JAX's pool
    if threads == 1:
        env["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    env["TORCHINDUCTOR_CACHE_DIR"] = str(Path(scratch) / "inductor")
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    return env


def processors(threads):
    """The processors that a contender with so many threads may run on; the same for all."""
    return sorted(os.sched_getaffinity(0))[:threads]


def popen(command, threads, scratch, gpu=False, **more):
    cpus = processors(threads)
    return subprocess.Popen(
        [str(word) for word in command],
        env=clean_environment(threads, scratch, gpu),
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        **more,
    )


def command_of(contender, threads, setup):
    if contender in ("regard", "plain"):
        return [setup.build / "bench" / "regard_worker", threads]
    return [setup.python, here / "worker.py", contender, threads]


class Contender:
    def __init__(self, contender, threads, setup):
        self.contender, self.buffer = contender, b""
        self.log = open(setup.logs / f"{contender}-{threads}.log", "wb")
        try:
            self.process = popen(
                command_of(contender, threads, setup),
                threads,
                setup.scratch,
                getattr(setup, "gpu", False),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
            )
        except OSError as error:
            self.log.close()
            raise Failure(f"cannot be started: {error}") from None
        try:
            hello = self.ask({"do": "hello"}, 300)
        except Failure:
            self.stop()
            raise
        name = "plain C++" if contender == "plain" else hello["name"]
        self.hello = hello
        self.name = name if contender == "plain" else f"{name} {hello['version']}"

    def ask(self, command, timeout=900):
        """The answer; a Failure where there is none, or an error."""
        if self.process.poll() is not None:
            raise Failure(f"ended with status {self.process.returncode}")
        end = time.monotonic() + timeout
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
            while b"\n" not in self.buffer:
                ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
                if not ready:
                    self.stop()
                    raise Failure(f"no answer within {timeout} s")
                part = os.read(self.process.stdout.fileno(), 1 << 16)
                if not part:
                    raise Failure(f"ended with status {self.process.wait(10)}")
                self.buffer += part
        except BrokenPipeError:
            raise Failure(f"ended with status {self.process.wait(10)}") from None
        line, self.buffer = self.buffer.split(b"\n", 1)
        try:
            answer = json.loads(line)
        except ValueError:
            raise Failure(f"answered {line[:80]!r}") from None
        if "error" in answer:
            raise Failure(answer["error"])
        return answer

    def run(self, steps):
        return self.ask({"do": "run", "steps": steps})

    def stop(self):
        try:
            self.process.stdin.close()
        except OSError:  # it is gone, with a command unread
            pass
        if self.process.poll() is None:
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self.log.close()


def warn(text):
    print("  " + text, file=sys.stderr, flush=True)
