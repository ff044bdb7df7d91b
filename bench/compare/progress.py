"""What a run has measured so far, on the disk after every row: one that is broken off loses the row it was at, and
--resume goes on behind the others.
"""
import json
import re
from dataclasses import dataclass, field

import report
from rows import Result, derived

# What must be the same for rows to stand in one table.
fixed = ("commit", "processor", "quick", "options")


class Mismatch(Exception):
    """Why an earlier run cannot be gone on with."""


@dataclass
class Progress:
    folder: object  # of unfinished.json, and of the rows so far as peers.json, peers.md and peers.svg
    facts: dict
    versions: dict = field(default_factory=dict)
    limits: dict = field(default_factory=dict)  # GFLOP/s by name, by number of threads
    results: list = field(default_factory=list)

    @property
    def path(self):
        return self.folder / "unfinished.json"

    def measured(self, row, threads):
        return any(r.row.name == row.name and r.threads == threads for r in self.results)

    def keep(self, result):
        self.results.append(result)
        self.save()

    def save(self):
        kept = [
            {
                "work": r.row.name,
                "multiply_adds": r.row.multiply_adds,
                **{name: getattr(r, name) for name in ("threads", "samples", "losses", "not_measured", "steps", "regard")},
                "load": getattr(r, "load", None),
            }
            for r in self.results
        ]
        limits = {str(threads): best for threads, best in self.limits.items()}
        whole = {"facts": self.facts, "versions": self.versions, "limits": limits, "results": kept}
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(whole, indent=1) + "\n")
        part.replace(self.path)
        if self.results:
            report.write(self.folder, self.entries())

    def entries(self):
        """Of peers.json. The share of the limit is that of the best rate in the whole run."""
        entries = []
        for result in self.results:
            best = self.limits.get(result.threads, {})
            facts = derived(result, max(best.values(), default=None))
            entries.append({**report.entry(result, facts, best), **self.facts, "versions": self.versions})
        return entries

    def set_aside(self):
        """Moves what an earlier run left, which this one would write over. Its new path, or None if there is none."""
        old = self.path.with_name(self.path.name + ".old")
        try:
            self.path.replace(old)
        except FileNotFoundError:
            return None
        return old

    def resume(self, rows, now):
        """Takes over what unfinished.json has of `rows`. A Mismatch where it was measured on something else."""
        try:
            earlier = json.loads(self.path.read_text())
        except FileNotFoundError:
            raise Mismatch(f"there is no run to go on with ({self.path})") from None
        except ValueError as error:
            raise Mismatch(f"{self.path}: {error}") from None
        if "+" in self.facts["commit"]:
            raise Mismatch(
                "the working tree has changes that no commit names, so nobody can tell whether they are those of the "
                "earlier rows: commit them, or measure all rows in one run"
            )
        for name in fixed:
            was, is_now = earlier["facts"].get(name), self.facts.get(name)
            if was != is_now:
                raise Mismatch(f"not the same {name}, {was} before and {is_now} now: measure all rows in one run")
        by_name = {row.name: row for row in rows}
        self.facts = {**earlier["facts"], "resumed": [*earlier["facts"].get("resumed", []), now]}
        self.versions.update(earlier["versions"])
        self.limits = {int(threads): best for threads, best in earlier["limits"].items()}
        for kept in earlier["results"]:
            row = by_name.get(kept.pop("work"))
            if row is None or "all" in kept["not_measured"]:  # a row that failed is measured again
                continue
            row.multiply_adds = kept.pop("multiply_adds")
            load = kept.pop("load")
            result = Result(row, **kept)
            result.load = load
            self.results.append(result)

    def check_versions(self, versions):
        """Peers that were updated in between are other peers."""
        # Without the number of threads it ends with, which is not that of all rows.
        self.versions["computing"] = re.sub(r", \d+ threads?$", "", versions.get("computing", ""))
        for name, version in versions.items():
            if name != "computing" and self.versions.setdefault(name, version) != version:
                raise Mismatch(f"{name} was {self.versions[name]} and is {version}: measure all rows in one run")

    def finish(self):
        for name in (self.path.name, *report.files):
            (self.folder / name).unlink(missing_ok=True)
