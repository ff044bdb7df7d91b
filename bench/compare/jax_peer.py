"""JAX: each step is one compiled function that updates parameters and moments in place (donated)."""
import functools

import jax
import jax.numpy as jnp

from common_peer import CharacterBatches, check_lr, joined, load_safetensors, timed_lr, warmup_cosine


def linear(p, x):
    y = x @ p["weight"].T
    return y + p["bias"] if "bias" in p else y


def layer_norm(p, x):
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
    y = (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["weight"]
    return y + p["bias"] if "bias" in p else y


def attention(p, x, heads, causal):
    batch, length, width = x.shape
    q, k, v = (
        part.reshape(batch, length, heads, width // heads) for part in jnp.split(linear(p["qkv"], x), 3, axis=-1)
    )
    y = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
    return linear(p["output"], y.reshape(batch, length, width))


def gpt_loss(p, ids, targets, heads):
    x = p["tokens"]["weight"][ids] + p["positions"]["weight"][: ids.shape[1]]
    for block in p["blocks"]:
        x = x + attention(block["attention"], layer_norm(block["norm1"], x), heads, True)
        hidden = jax.nn.gelu(linear(block["up"], layer_norm(block["norm2"], x)), approximate=False)
        x = x + linear(block["down"], hidden)
    head = p["head"]["weight"] if "head" in p else p["tokens"]["weight"]
    logits = layer_norm(p["norm"], x) @ head.T
    right = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - right)


def adamw(p, g, m, v, step, lr, decay, beta1=0.9, beta2=0.999, eps=1e-8):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    corrected = jnp.sqrt(v / (1 - beta2**step)) + eps
    return p * (1 - lr * decay) - lr / (1 - beta1**step) * m / corrected, m, v


def attention_parameters(weights, prefix):
    layer = {"qkv": {}, "output": {}}
    for kind in ("weight", "bias"):
        if f"{prefix}query.{kind}" in weights:
            layer["qkv"][kind] = jnp.asarray(joined(weights, prefix, kind))
            layer["output"][kind] = jnp.asarray(weights[f"{prefix}output.{kind}"])
    return layer


def gpt_parameters(o):
    weights = load_safetensors(o["load"])

    def part(prefix):
        names = {kind: f"{prefix}.{kind}" for kind in ("weight", "bias")}
        return {kind: jnp.asarray(weights[name]) for kind, name in names.items() if name in weights}

    p = {"tokens": part("tokens"), "positions": part("positions"), "norm": part("norm"), "blocks": []}
    for i in range(o["depth"]):
        block = {name: part(f"blocks.{i}.{name}") for name in ("norm1", "norm2")}
        block |= {name: part(f"blocks.{i}.feed_forward.{name}") for name in ("up", "down")}
        block["attention"] = attention_parameters(weights, f"blocks.{i}.attention.")
        p["blocks"].append(block)
    if not o.get("tied"):
        p["head"] = part("head")
    return p, weights


class Training:
    """Parameters, moments and the compiled step."""

    def __init__(self, o, clip=None, **options):
        self.p, weights = gpt_parameters(o)
        self.m = self.v = None  # made by the first step, as everybody's
        self.steps_done = 0
        decay = options.pop("decay")
        loss = functools.partial(gpt_loss, heads=o["heads"])

        def step(p, m, v, ids, targets, count, lr):
            value, grads = jax.value_and_grad(loss)(p, ids, targets)
            if clip is not None:
                norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
                grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, clip / (norm + 1e-6)), grads)
            new = jax.tree.map(lambda p, g, m, v: adamw(p, g, m, v, count, lr, decay(p), **options), p, grads, m, v)
            return [jax.tree.map(lambda _, leaf: leaf[i], p, new) for i in range(3)], value

        integer = jax.ShapeDtypeStruct((o["batch"], o["length"]), jnp.int32)
        number = jax.ShapeDtypeStruct((), jnp.float32)
        jitted = jax.jit(step, donate_argnums=(0, 1, 2))
        self.compiled = jitted.lower(self.p, self.p, self.p, integer, integer, number, number).compile()
        if "ids" in weights:
            self.ids, self.targets = (jnp.asarray(weights[name].astype("int32")) for name in ("ids", "targets"))

    def __call__(self, ids, targets, lr):
        if self.m is None:
            self.m, self.v = (jax.tree.map(jnp.zeros_like, self.p) for _ in range(2))
        self.steps_done += 1
        (self.p, self.m, self.v), loss = self.compiled(
            self.p, self.m, self.v, ids, targets, jnp.float32(self.steps_done), jnp.float32(lr)
        )
        return float(loss)


class GptStep:
    def __init__(self, o):
        self.training = Training(o, decay=lambda p: 0.01)
        self.lr = check_lr

    def step(self):
        return self.training(self.training.ids, self.training.targets, self.lr)

    def check(self, steps):
        losses = [self.step() for _ in range(steps)]
        self.lr = timed_lr
        return losses

    def results(self):
        return {}


class AttentionStep:
    def __init__(self, o):
        weights = load_safetensors(o["load"])
        self.p = attention_parameters(weights, "")
        self.x, self.gradient = jnp.asarray(weights["x"]), jnp.asarray(weights["gradient"])

        def step(p, x, gradient):
            call = functools.partial(attention, heads=o["heads"], causal=bool(o.get("causal")))
            y, backward = jax.vjp(call, p, x)
            return y, *backward(gradient)

        self.compiled = jax.jit(step).lower(self.p, self.x, self.gradient).compile()

    def step(self):
        self.y, self.dp, self.dx = jax.block_until_ready(self.compiled(self.p, self.x, self.gradient))

    def check(self, steps):
        for _ in range(steps):
            self.step()
        if not steps:
            return []
        width = self.x.shape[-1]
        norms = (jnp.linalg.norm(a.ravel()) for a in (self.dx, self.dp["qkv"]["weight"][:width]))
        return [float(jnp.sum(self.y * self.gradient)), *(float(n) for n in norms)]

    def results(self):
        return {}


class CharacterTraining:
    def __init__(self, o):
        decay = lambda p: 0.1 if p.ndim == 2 else 0.0
        self.training = Training(o, clip=1.0, decay=decay, beta2=0.99)
        self.batches, self.steps, self.at, self.losses = CharacterBatches(o), o["steps"], 0, []

    def step(self):
        ids, targets = (x.astype("int32") for x in self.batches.next())
        self.losses.append(self.training(ids, targets, warmup_cosine(self.at, self.steps)))
        self.at += 1

    def check(self, steps):
        return []

    def results(self):
        losses, self.losses = self.losses, []
        return {"losses": losses}


class SquareProduct:
    def __init__(self, o):
        a = jax.random.normal(jax.random.key(1), (o["size"], o["size"]))
        self.call = functools.partial(jax.jit(jnp.matmul).lower(a, a).compile(), a, a)

    def step(self):
        self.call().block_until_ready()

    def check(self, steps):
        return []

    def results(self):
        return {}


works = {"gpt": GptStep, "attention": AttentionStep, "characters": CharacterTraining, "sgemm": SquareProduct}


class Peer:
    def __init__(self, name, threads):  # threads: by affinity and XLA_FLAGS, see contenders.py
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_default_matmul_precision", "highest")  # f32, as everybody

    def hello(self):
        return {"name": "JAX jit", "version": jax.__version__}

    def open(self, options):
        jax.clear_caches()
        if options["work"] not in works:
            raise RuntimeError("records nothing outside a traced function")
        return works[options["work"]](options)
