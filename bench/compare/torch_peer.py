"""PyTorch, eager and compiled, at its best: fused scaled dot-product attention, one product for query, key and value,
the fused AdamW."""
import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F

from common_peer import CharacterBatches, check_lr, joined, load_safetensors, timed_lr, warmup_cosine


class Attention(nn.Module):
    def __init__(self, width, heads, bias=True):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias)
        self.output = nn.Linear(width, width, bias)

    def forward(self, x, causal):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.output(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=bias)
        self.attention = Attention(width, heads, bias)
        self.norm2 = nn.LayerNorm(width, bias=bias)
        self.up = nn.Linear(width, 4 * width, bias)
        self.down = nn.Linear(4 * width, width, bias)

    def forward(self, x):
        x = x + self.attention(self.norm1(x), True)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, o):
        super().__init__()
        width, bias = o["width"], o.get("bias", True)
        self.tokens = nn.Embedding(o["vocabulary"], width)
        self.positions = nn.Embedding(o.get("positions") or o["length"], width)
        self.blocks = nn.ModuleList(Block(width, o["heads"], bias) for _ in range(o["depth"]))
        self.norm = nn.LayerNorm(width, bias=bias)
        self.head = nn.Linear(width, o["vocabulary"], bias=False)
        if o.get("tied"):
            self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def load_attention(layer, weights, prefix):
    state = {}
    for kind in ("weight", "bias"):
        if f"{prefix}query.{kind}" in weights:
            state[f"qkv.{kind}"] = torch.from_numpy(joined(weights, prefix, kind))
            state[f"output.{kind}"] = torch.from_numpy(weights[f"{prefix}output.{kind}"])
    layer.load_state_dict(state)


class OnDevice:
    """Where work is done, and in what precision: see regard_worker.cpp."""

    def __init__(self, o):
        self.device = torch.device(o.get("device", "cpu"))
        self.precision = o.get("precision", "f32")
        if self.precision not in ("f32", "tf32", "bf16"):
            raise ValueError(f"no precision is called {self.precision}")
        torch.set_float32_matmul_precision("high" if self.precision == "tf32" else "highest")  # f32 as everybody

    def there(self, array):
        return torch.from_numpy(array).to(self.device)

    def forward(self):
        if self.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def reset_peak(self):
        """The GPU's bytes in tensors; from now on its peak is counted. None on the CPU."""
        if self.device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)

    def peak(self):
        return torch.cuda.max_memory_allocated(self.device)


def make_gpt(o):
    with torch.device("meta"):
        model = Gpt(o)
    model.to_empty(device="cpu")
    if o.get("tied"):
        model.head.weight = model.tokens.weight
    weights = load_safetensors(o["load"])
    state = {}
    for name, value in weights.items():
        if ".attention." not in name and name not in ("ids", "targets"):
            state[name.replace("feed_forward.", "")] = torch.from_numpy(value)
    if o.get("tied"):
        state["head.weight"] = state["tokens.weight"]
    missing = model.load_state_dict(state, strict=False)
    if missing.unexpected_keys or any(".attention." not in name for name in missing.missing_keys):
        raise RuntimeError(f"weights do not fit: {missing}")
    for i, block in enumerate(model.blocks):
        load_attention(block.attention, weights, f"blocks.{i}.attention.")
    return model, weights


class GptStep(OnDevice):
    def __init__(self, o, compiled):
        super().__init__(o)
        model, weights = make_gpt(o)
        model.to(self.device)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=check_lr, fused=True)
        self.model = torch.compile(model) if compiled else model
        self.ids, self.targets = (self.there(weights[name]) for name in ("ids", "targets"))

    def step(self):
        with self.forward():
            loss = self.model(self.ids, self.targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach() if self.device.type == "cuda" else loss.item()  # a GPU is not waited for in each step

    def check(self, steps):
        losses = [float(self.step()) for _ in range(steps)]
        for group in self.optimizer.param_groups:
            group["lr"] = timed_lr
        return losses

    def results(self):
        return {}


class AttentionStep(OnDevice):
    def __init__(self, o, compiled):
        super().__init__(o)
        weights = load_safetensors(o["load"])
        self.layer = Attention(o["width"], o["heads"])
        load_attention(self.layer, weights, "")
        self.layer.to(self.device)
        self.call = torch.compile(self.layer) if compiled else self.layer
        self.causal = bool(o.get("causal"))
        self.x = self.there(weights["x"]).requires_grad_()
        self.gradient = self.there(weights["gradient"])
        self.y = None

    def step(self):
        self.layer.zero_grad(set_to_none=True)
        self.x.grad = None
        self.y = None
        with self.forward():
            self.y = self.call(self.x, self.causal)
        if self.gradient.dtype != self.y.dtype:
            self.gradient = self.gradient.to(self.y.dtype)
        self.y.backward(self.gradient)

    def check(self, steps):
        for _ in range(steps):
            self.step()
        if not steps:
            return []
        width = self.x.shape[-1]
        return [
            (self.y.detach() * self.gradient).float().sum().item(),
            self.x.grad.norm().item(),
            self.layer.qkv.weight.grad[:width].norm().item(),
        ]

    def results(self):
        return {}


class CharacterTraining:
    """nanoGPT's train.py."""

    def __init__(self, o, compiled):
        self.raw, _ = make_gpt(o)
        decayed = [p for p in self.raw.parameters() if p.dim() == 2]
        rest = [p for p in self.raw.parameters() if p.dim() != 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
        self.model = torch.compile(self.raw) if compiled else self.raw
        self.batches, self.steps, self.at, self.losses = CharacterBatches(o), o["steps"], 0, []
        if compiled:  # compiling is not timed
            ids, targets = (torch.from_numpy(x) for x in CharacterBatches(o).next())
            self.model(ids, targets).backward()

    def step(self):
        for group in self.optimizer.param_groups:
            group["lr"] = warmup_cosine(self.at, self.steps)
        ids, targets = (torch.from_numpy(x) for x in self.batches.next())
        loss = self.model(ids, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.raw.parameters(), 1.0)
        self.optimizer.step()
        self.at += 1
        self.losses.append(loss.item())

    def check(self, steps):
        return []

    def results(self):
        losses, self.losses = self.losses, []
        return {"losses": losses}


class TinyAdd:
    def __init__(self, o, compiled):
        self.a, self.b = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
        self.f = torch.compile(lambda a, b: a + b) if compiled else None

    def step(self):
        if self.f:
            self.f(self.a, self.b)
        else:
            self.a + self.b

    def check(self, steps):
        for _ in range(steps):
            self.step()
        return []

    def results(self):
        return {}


class SquareProduct(OnDevice):
    def __init__(self, o, compiled):
        super().__init__(o)
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        self.a, self.b = (torch.randn(o["size"], o["size"], device=self.device, dtype=dtype) for _ in range(2))

    def step(self):
        torch.mm(self.a, self.b)

    def check(self, steps):
        return []

    def results(self):
        return {}


works = {
    "gpt": GptStep,
    "attention": AttentionStep,
    "characters": CharacterTraining,
    "tiny add": TinyAdd,
    "sgemm": SquareProduct,
}


class Peer:
    def __init__(self, name, threads):
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        torch.manual_seed(1)
        self.compiled = name == "torch.compile"

    def hello(self):
        name = "torch.compile" if self.compiled else "torch eager"
        return {"name": name, "version": torch.__version__}

    def open(self, options):
        torch._dynamo.reset()
        self.close()
        return works[options["work"]](options, self.compiled)

    def close(self):
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
