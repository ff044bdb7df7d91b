"""The peers' virtual environment, and what a result must say about where it comes from."""
import os
import platform
import subprocess
import sys
from pathlib import Path

packages = {"torch": "torch", "torch.compile": "torch", "jax": "jax"}


def quiet(command, log, timeout=3600):
    with open(log, "ab") as file:
        try:
            return subprocess.run([str(c) for c in command], stdout=file, stderr=file, timeout=timeout).returncode == 0
        except (OSError, subprocess.TimeoutExpired) as error:
            file.write(f"{error}\n".encode())
            return False


def make(folder, logs):
    """The environment's Python, with the newest PyTorch and JAX that the package index gives, as far as it does; and
    the reason by package for what it does not. None for the Python where there can be no environment."""
    python = Path(folder) / "bin" / "python"
    log = logs / "environment.log"
    if not python.exists():
        print(f"making {folder}", file=sys.stderr, flush=True)
        if not quiet([sys.executable, "-m", "venv", folder], log):
            return None, {name: f"no virtual environment could be made (see {log})" for name in set(packages.values())}
    reasons = {}
    for package in sorted(set(packages.values())):
        print(f"installing the newest {package}", file=sys.stderr, flush=True)
        installed = quiet([python, "-m", "pip", "install", "--upgrade", package], log)
        if not installed and not version(python, package):
            reasons[package] = f"could not be installed (see {log})"
        elif not installed:
            print(f"  no newer one can be looked up; using {version(python, package)}", file=sys.stderr, flush=True)
    return python, reasons


def version(python, package):
    code = f"import importlib.metadata as m; print(m.version('{package}'))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def commit(root):
    def git(*words):
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "HEAD")
    if not head:
        return "unknown"
    # Results that an earlier run wrote are no change of what is measured.
    changed = [line for line in git("status", "--porcelain").splitlines() if "bench/results/" not in line]
    return head + ("+changes" if changed else "")


def processor():
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{name}, {len(os.sched_getaffinity(0))} processors"
