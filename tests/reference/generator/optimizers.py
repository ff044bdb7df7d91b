"""Twenty steps of each optimizer on recorded gradients, and the learning rates of each schedule."""
import math
import warnings

import torch

from .common import Numbers, plain

STEPS = 20


def optimizer_case(kind, name, groups, note=None, **options):
    """`groups` are option dictionaries, one a parameter group; two parameters a group."""
    numbers = Numbers("optimizer", f"{kind}/{name}")
    parameters = [[numbers.normal(3), numbers.normal(2, 2)] for _ in groups]
    make = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}[kind]
    optimizer = make([dict(group, params=p) for group, p in zip(groups, parameters)], **options)
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
