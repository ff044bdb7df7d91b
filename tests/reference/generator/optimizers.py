"""Twenty steps of each optimizer on recorded gradients, and the learning rates of each schedule."""
import math
import warnings

import torch
from torch.optim import _muon

from .common import Numbers, plain

STEPS = 20


class Lion(torch.optim.Optimizer):
    """Program 1 of Chen et al., "Symbolic discovery of optimization algorithms", 2023; PyTorch has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = torch.sign(beta1 * m + (1 - beta1) * p.grad)
                p.copy_(p - group["lr"] * (update + group["weight_decay"] * p))
                m.copy_(beta2 * m + (1 - beta2) * p.grad)


def in_own_dtype(grad, ns_coefficients, ns_steps, eps):
    """PyTorch's _zeropower_via_newtonschulz line by line, but for its cast to bfloat16."""
    a, b, c = ns_coefficients
    x = grad.clone()
    if grad.size(0) > grad.size(1):
        x = x.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = x @ x.T
        update = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, update, x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


_muon._zeropower_via_newtonschulz = in_own_dtype
KINDS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW, "Lion": Lion,
         "Adafactor": torch.optim.Adafactor, "Muon": torch.optim.Muon}


def optimizer_case(kind, name, groups, note=None, shapes=((3,), (2, 2)), **options):
    """`groups` are option dictionaries, one a parameter group; a parameter of each shape a group."""
    numbers = Numbers("optimizer", f"{kind}/{name}")
    parameters = [[numbers.normal(*shape) for shape in shapes] for _ in groups]
    optimizer = KINDS[kind]([dict(group, params=p) for group, p in zip(groups, parameters)], **options)
    flat = [p for group in parameters for p in group]
    result = {"optimizer": kind, "name": name, "options": options, "groups": groups,
              "parameters": [[plain(p) for p in group] for group in parameters], "gradients": [], "values": []}
    for step in range(STEPS):
        for parameter in flat:
            # Large and small gradients in turn, so that the moments matter.
            parameter.grad = numbers.normal(*parameter.shape, scale=(1, 0.1, 4)[step % 3], grad=False)
        optimizer.step()
        result["gradients"].append([plain(p.grad)["data"] for p in flat])
        result["values"].append([plain(p)["data"] for p in flat])
    if note:
        result["note"] = note
    return result


def optimizers():
    one = [{}]
    two = [{"lr": 0.05, "weight_decay": 0.2}, {"lr": 0.01, "weight_decay": 0.0}]
    case = optimizer_case
    return [
        case("SGD", "plain", one, lr=0.1),
        case("SGD", "momentum", one, lr=0.1, momentum=0.9),
        case("SGD", "nesterov", one, lr=0.1, momentum=0.9, nesterov=True),
        case("SGD", "weight decay", one, lr=0.1, weight_decay=0.05),
        case("SGD", "momentum and weight decay", one, lr=0.1, momentum=0.8, weight_decay=0.05),
        case("SGD", "nesterov and weight decay", one, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.05),
        case("SGD", "dampening", one, lr=0.1, momentum=0.9, dampening=0.3),
        case("SGD", "two groups", two, lr=0.1, momentum=0.9),
        case("Adam", "plain", one, lr=0.01),
        case("Adam", "betas and eps", one, lr=0.01, betas=[0.8, 0.95], eps=1e-4),
        case("Adam", "weight decay", one, lr=0.01, weight_decay=0.1),
        case("Adam", "two groups", two, lr=0.1),
        case("AdamW", "plain", one, lr=0.01, weight_decay=0.01),
        case("AdamW", "no weight decay", one, lr=0.01, weight_decay=0.0),
        case("AdamW", "strong weight decay", one, lr=0.05, weight_decay=0.5),
        case("AdamW", "betas and eps", one, lr=0.01, betas=[0.8, 0.95], eps=1e-4, weight_decay=0.1),
        case("AdamW", "two groups", two, lr=0.1),
        case("Lion", "plain", one, lr=0.01),
        case("Lion", "betas", one, lr=0.01, betas=[0.8, 0.95]),
        case("Lion", "weight decay", one, lr=0.05, weight_decay=0.3),
        case("Lion", "two groups", two, lr=0.1),
        case("Adafactor", "plain", one, lr=0.05, shapes=((3,), (2, 4))),
        case("Adafactor", "stacks and numbers", one, lr=0.3, shapes=((2, 3, 2), ())),
        case("Adafactor", "weight decay", one, lr=0.05, weight_decay=0.3),
        case("Adafactor", "all options", one, lr=0.2, beta2_decay=-0.5, eps=[0.5, 0.8], d=1.5, shapes=((3,), (3, 2))),
        case("Adafactor", "two groups", two, lr=0.1),
        case("Muon", "plain", one, lr=0.02, shapes=((2, 2), (2, 4))),
        case("Muon", "tall, no decay", one, lr=0.02, weight_decay=0.0, shapes=((4, 2),)),
        case("Muon", "no nesterov", one, lr=0.02, momentum=0.8, nesterov=False, shapes=((3, 2),)),
        case("Muon", "iterations", one, lr=0.02, ns_steps=3, ns_coefficients=[3.0, -3.2, 1.2], shapes=((3, 3),)),
        case("Muon", "match_rms_adamw", one, lr=0.02, adjust_lr_fn="match_rms_adamw", shapes=((2, 4), (4, 2))),
        case("Muon", "spectral_unclamped", one, lr=0.02, adjust_lr_fn="spectral_unclamped", shapes=((2, 4), (4, 2))),
        case("Muon", "two groups", two, lr=0.1, shapes=((2, 3),)),
    ]


def rates(make, steps, lr):
    """The learning rate that holds for each of `steps` steps, from one of PyTorch's schedulers."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = make(optimizer)
        result = []
        for _ in range(steps):
            result.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return result


def schedules():
    from torch.optim import lr_scheduler as s
    result = []

    def add(kind, name, lr, options, closed, steps, make=None, equal_for=None, note=None):
        """Values come from the closed form, checked against PyTorch's scheduler for its first `equal_for` steps."""
        values = [closed(step) for step in range(steps)]
        if make:
            theirs = rates(make, steps, lr)[:equal_for]
            assert all(math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-15) for a, b in zip(theirs, values)), (kind, name, theirs, values)
        result.append({"schedule": kind, "name": name, "lr": lr, "options": options, "rates": values,
                       "torch_equal_for": (equal_for or steps) if make else 0, **({"note": note} if note else {})})

    add("constant", "plain", 0.1, {}, lambda t: 0.1, 10, lambda o: s.ConstantLR(o, factor=1.0))
    for warmup in (1, 4, 10):
        add("linear_warmup", f"{warmup} steps", 0.1, {"warmup_steps": warmup}, lambda t: 0.1 * min(1, (t + 1) / warmup), 15,
            (lambda o: s.LinearLR(o, 1 / warmup, 1.0, warmup - 1)) if warmup > 1 else None)

    def cosine(t, total, lr, low):
        return low + (lr - low) * (1 + math.cos(math.pi * min(t, total) / total)) / 2

    for low in (0.0, 0.01):
        add("cosine", f"to {low}", 0.2, {"total_steps": 12, "min_lr": low}, lambda t: cosine(t, 12, 0.2, low), 18,
            lambda o: s.CosineAnnealingLR(o, 12, low), 13, "stays at its minimum after the end; PyTorch's rises again")
    add("step", "every 4, gamma 0.5", 0.3, {"step_size": 4, "gamma": 0.5}, lambda t: 0.3 * 0.5 ** (t // 4), 15,
        lambda o: s.StepLR(o, 4, 0.5))
    add("step", "every 1, gamma 0.9", 0.3, {"step_size": 1, "gamma": 0.9}, lambda t: 0.3 * 0.9**t, 15, lambda o: s.StepLR(o, 1, 0.9))
    for warmup, total, low in ((4, 16, 0.0), (5, 20, 0.02), (1, 10, 0.0)):
        add("warmup_cosine", f"{warmup} of {total} steps, to {low}", 0.2,
            {"warmup_steps": warmup, "total_steps": total, "min_lr": low},
            lambda t: 0.2 * (t + 1) / warmup if t < warmup else cosine(t - warmup, total - warmup, 0.2, low), total + 5,
            (lambda o: s.SequentialLR(o, [s.LinearLR(o, 1 / warmup, 1.0, warmup - 1),
                                          s.CosineAnnealingLR(o, total - warmup, low)], [warmup])) if warmup > 1 else None,
            total + 1, "stays at its minimum after the end; PyTorch's rises again")
    return result
