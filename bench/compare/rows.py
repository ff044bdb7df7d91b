"""The rows of the comparison: what is computed, how many multiply-adds it takes, and what is aimed at."""
from dataclasses import dataclass, field


@dataclass
class Row:
    name: str
    options: dict  # of the command "open"
    target: str
    conditions: list  # (kind, number): see met() below
    kind: str = "steps"  # or memory, characters, start-up
    multiply_adds: float = 0  # of one step
    peers: tuple = ("torch", "torch.compile", "jax")
    steps: int = 0  # in each of Regard's batches; 0: as many as take a while
    check: int = 3  # steps whose results are compared
    heavy: bool = False  # left out of a quick run


def gpt(batch, length, vocabulary, width, heads, depth, **more):
    names = ("batch", "length", "vocabulary", "width", "heads", "depth")
    return {"work": "gpt", **dict(zip(names, (batch, length, vocabulary, width, heads, depth))), **more}


def attention(batch, length, width, heads, causal=False):
    return {"work": "attention", "batch": batch, "length": length, "width": width, "heads": heads, "causal": causal}


def multiply_adds(o):
    """Of the matrix products of a forward and backward pass, the backward twice the forward; causal attention counts
    half. Recomputing something counts for nothing."""
    tokens, width = o["batch"] * o["length"], o["width"]
    scores = 2 * tokens * o["length"] * width  # queries by keys, weights by values
    if o["work"] == "attention":
        return 3 * (4 * tokens * width**2 + scores * (0.5 if o["causal"] else 1))
    block = 12 * tokens * width**2 + 0.5 * scores
    return 3 * (o["depth"] * block + tokens * width * o["vocabulary"])


def minutes(row, threads, quick):
    """About how long a row takes, on two cores that have nothing else to do."""
    if row.kind == "characters":
        return (0.5 if quick else 4.5) if threads > 1 else (1 if quick else 9)
    if row.kind == "start-up":
        return 0.3 if quick else 0.7
    if row.kind == "memory":
        return 0.6 if row.heavy else 0.4
    return 0.3 if quick else 1.3 if row.heavy else 0.5


toy = gpt(16, 16, 16, 32, 4, 2)
small = gpt(12, 64, 65, 128, 4, 4)
medium = gpt(8, 256, 65, 384, 6, 6)
gpt2 = gpt(4, 64, 50257, 768, 12, 12, tied=True, positions=1024)
attention_2048 = attention(1, 2048, 512, 8)
attention_2048_causal = attention(1, 2048, 512, 8, causal=True)


def characters(vocabulary, steps, text, starts):
    options = gpt(12, 64, vocabulary, 128, 4, 4, tied=True, bias=False, steps=steps, text=text, starts=starts)
    return {**options, "work": "characters"}


def timed(name, options, target, *conditions, **more):
    return Row(name, options, target, list(conditions), multiply_adds=multiply_adds(options), **more)


def memory(name, options, target="at most 0.6x PyTorch's", **more):
    peers = ("torch", "jax")
    return Row("peak memory of a step: " + name, options, target, [("memory", 0.6)], "memory", peers=peers, **more)


def all_rows():
    return [
        timed("attention 2x3x6, 2 heads", attention(2, 3, 6, 2), "at least 5x the best peer", ("speedup", 5)),
        timed("attention 4x10x512, 8 heads", attention(4, 10, 512, 8), "at least 2x the best peer", ("speedup", 2)),
        timed("GPT step B16 T16 V16 E32 H4 L2", toy, "at least 5x the best peer", ("speedup", 5)),
        Row(
            "GPT step B16 T16 V16 E32 H4 L2 against plain C++",
            toy,
            "at most 1.25x its time",
            [("times", 1.25)],
            peers=("plain",),
            multiply_adds=multiply_adds(toy),
        ),
        timed(
            "GPT step 12,64,65,128,4,4",
            small,
            "at least 1.7x the best peer, at least 75% of the limit",
            ("speedup", 1.7),
            ("share", 0.75),
        ),
        timed(
            "attention 8x128x512, 8 heads", attention(8, 128, 512, 8), "at least 1.3x the best peer", ("speedup", 1.3)
        ),
        timed(
            "attention 1x2048x512 causal, 8 heads",
            attention_2048_causal,
            "at least 1.3x the best peer, at least 65% of the limit",
            ("speedup", 1.3),
            ("share", 0.65),
        ),
        timed(
            "attention 1x2048x512 full, 8 heads",
            attention_2048,
            "at least 1.3x the best peer, at least 65% of the limit",
            ("speedup", 1.3),
            ("share", 0.65),
        ),
        timed(
            "GPT step 8,256,65,384,6,6",
            medium,
            "faster than every peer, at least 85% of the limit",
            ("speedup", 1),
            ("share", 0.85),
            check=2,
            heavy=True,
        ),
        timed(
            "GPT-2 124M step B4 T64",
            gpt2,
            "faster than every peer, at least 85% of the limit",
            ("speedup", 1),
            ("share", 0.85),
            check=2,
            heavy=True,
        ),
        Row(
            "add 2x3, recorded, result freed",
            {"work": "tiny add"},
            "under 200 ns",
            [("below ms", 200e-6)],
            peers=("torch", "torch.compile"),  # JAX records only while it traces
            steps=1_000_000,
            check=0,
        ),
        Row(
            "character model, 4 layers, width 128, context 64, batch 12",
            {},  # made when the text is there
            "same loss as PyTorch within 1%, least time of all",
            [("speedup", 1), ("loss", 0.01)],
            "characters",
        ),
        Row(
            "start-up of a built example to its first step",
            toy,
            "under 20 ms",
            [("below ms", 20)],
            "start-up",
            peers=("torch", "jax"),
        ),
        memory("GPT step 12,64,65,128,4,4", small),
        memory("GPT step 8,256,65,384,6,6", medium),
        memory("attention 1x2048x512 causal", attention_2048_causal),
        memory("attention 1x2048x512 full", attention_2048),
        memory("GPT-2 124M step B4 T64", gpt2, heavy=True),
        memory(
            "GPT-2 124M step B4 T64, Regard's side stepped inside backward, 4 MiB kept",
            {**gpt2, "step in backward": True, "kept bytes": 4 << 20},
            "for comparison: at most 0.6x PyTorch's plain step",
            heavy=True,
        ),
    ]


@dataclass
class Result:
    row: Row
    threads: int
    samples: dict = field(default_factory=dict)  # milliseconds (memory: MiB) by name and version, Regard's first
    losses: dict = field(default_factory=dict)
    not_measured: dict = field(default_factory=dict)  # the reason by name
    steps: int = 0  # of a training run
    regard: str = ""  # its name among the samples


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def derived(result, limit_gflops):
    """What follows from the samples: medians, ratios, the share of the limit, and whether the target is met."""
    row = result.row
    medians = {name: median(samples) for name, samples in result.samples.items() if samples}
    regard = medians.pop(result.regard, None)
    best = min(medians.values(), default=None)
    is_memory = row.kind == "memory"
    limit = None
    if limit_gflops and row.multiply_adds:
        limit = 2 * row.multiply_adds * (result.steps or 1) / limit_gflops * 1e-6
    ratio = best / regard if regard and best is not None else None
    if is_memory:  # PyTorch's is what counts
        torch = next((value for name, value in medians.items() if name.startswith("torch eager")), None)
        ratio = torch / regard if regard and torch is not None else None
    share = limit / regard if limit and regard else None

    def holds(kind, number):
        if regard is None:
            return None
        if kind == "speedup":
            return ratio and (ratio > 1 if number == 1 else ratio >= number)
        if kind == "times":
            return best and regard <= number * best
        if kind == "share":
            return share and share >= number
        if kind == "below ms":
            return regard < number
        if kind == "memory":
            return ratio and 1 / ratio <= number
        if kind == "loss":
            torch = next((loss for name, loss in result.losses.items() if name.startswith("torch eager")), None)
            mine = result.losses.get(result.regard)
            return torch and mine and abs(mine - torch) <= number * torch
        raise ValueError(kind)

    parts = [holds(*condition) for condition in row.conditions]
    met = None if any(part is None for part in parts) else all(parts)
    if any(part is not None and not part for part in parts):
        met = False  # one that is missed decides
    return {
        "regard_ms": None if is_memory else regard,
        "peer_ms": {} if is_memory else medians,
        "limit_ms": limit,
        "regard_peak_mib": regard if is_memory else None,
        "peer_peak_mib": medians if is_memory else {},
        "target": row.target,
        "met": met,
        "ratio": ratio,  # the best peer's over Regard's (of memory: PyTorch's)
        "share_of_limit": share,
    }
