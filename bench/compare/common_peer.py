"""What the peers share: reading what Regard saved, the learning rates, and the batches of the character model."""
import json
import math

import numpy as np

check_lr = 1e-3
timed_lr = 1e-6  # see regard_worker.cpp


def load_safetensors(path):
    types = {"F32": np.float32, "I64": np.int64}
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        tensors = {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            file.seek(8 + length + begin)
            flat = np.frombuffer(file.read(end - begin), types[entry["dtype"]])
            tensors[name] = flat.reshape(entry["shape"]).copy()
    return tensors


def joined(weights, layer, kind):
    """query, key and value of an attention layer as one: the peers compute the three in one product."""
    return np.concatenate([weights[f"{layer}{part}.{kind}"] for part in ("query", "key", "value")])


def warmup_cosine(step, steps, warmup=100, lr=1e-3, min_lr=1e-4):
    """Regard's WarmupCosine."""
    if step < warmup:
        return lr * (step + 1) / warmup
    share = min(1.0, (step - warmup) / (steps - warmup))
    return min_lr + (lr - min_lr) * 0.5 * (1 + math.cos(math.pi * share))


class CharacterBatches:
    def __init__(self, options):
        self.text = np.fromfile(options["text"], np.uint8)
        self.starts = np.fromfile(options["starts"], np.int64)
        self.batch, self.length, self.at = options["batch"], options["length"], 0

    def next(self):
        """ids and targets, [batch, length]."""
        starts = self.starts[self.at : self.at + self.batch]
        self.at += self.batch
        whole = self.text[starts[:, None] + np.arange(self.length + 1)].astype(np.int64)
        return np.ascontiguousarray(whole[:, :-1]), np.ascontiguousarray(whole[:, 1:])
