"""What the generators share: seeded numbers, JSON, and the record of one operation."""
import json
import math
import zlib

import numpy
import torch

SEED = 20240601
NAMES = {torch.float64: "f64", torch.float32: "f32", torch.int64: "i64", torch.bool: "bool"}


class Numbers:
    """Random inputs for one case, keyed by its operation and name."""

    def __init__(self, op, name):
        self.random = numpy.random.default_rng([SEED, zlib.crc32(f"{op}/{name}".encode())])

    def _grid(self, values, requires_grad):
        tensor = torch.tensor(numpy.round(numpy.asarray(values) * 1024) / 1024, dtype=torch.float64)
        return tensor.requires_grad_(requires_grad)

    def normal(self, *shape, scale=1.0, grad=True):
        return self._grid(self.random.standard_normal(shape) * scale, grad)

    def uniform(self, *shape, low=0.0, high=1.0, grad=True):
        return self._grid(self.random.uniform(low, high, shape), grad)

    def distinct(self, *shape, grad=True):
        """No two elements are equal, and they are a good way apart: for max, min and their like."""
        count = math.prod(shape)
        return self._grid((self.random.permutation(count) - count / 2 + 0.3).reshape(shape) / 4, grad)

    def integers(self, low, high, *shape):
        return torch.tensor(self.random.integers(low, high, shape), dtype=torch.int64)

    def booleans(self, *shape, p=0.5):
        return torch.tensor(self.random.uniform(size=shape) < p)


def number(value):
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        if value == int(value) and abs(value) < 2**53 and str(value) != "-0.0":
            return int(value)  # the reader takes 3 for 3.0; shorter
    return value


def tensor_json(tensor, requires_grad=None):
    """{"shape", "dtype", "data"} of a tensor; "requires_grad" only where it is true."""
    result = {
        "shape": list(tensor.shape),
        "dtype": NAMES[tensor.dtype],
        "data": [number(v) for v in tensor.detach().reshape(-1).tolist()],
    }
    if requires_grad if requires_grad is not None else tensor.requires_grad:
        result["requires_grad"] = True
    return result


def plain(tensor):
    return tensor_json(tensor, requires_grad=False)


def gradients(outputs, inputs, upstream):
    """Gradients of `inputs` (zeros where the graph does not reach one) for the given upstream gradients."""
    found = torch.autograd.grad(outputs, inputs, upstream, allow_unused=True)
    return [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, found)]


class Cases(list):
    """A list of operation cases; `add` runs one through PyTorch and records it."""

    def __init__(self):
        super().__init__()
        self._seen = set()

    def add(self, op, name, function, inputs, note=None, f32=True, **args):
        """`inputs` is a list of tensors or a function of Numbers that makes one. `function` gets the tensors.

        f32=False marks values that single precision cannot hold, or where it takes another branch."""
        assert (op, name) not in self._seen, f"two cases are called {op} / {name}"
        self._seen.add((op, name))
        numbers = Numbers(op, name)
        tensors = inputs(numbers) if callable(inputs) else inputs
        tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
        outputs = function(*tensors)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        case = {"op": op, "name": name, "inputs": [tensor_json(t) for t in tensors], "args": args,
                "outputs": [plain(o) for o in outputs]}
        if any(o.requires_grad for o in outputs):
            upstream = [numbers.normal(*o.shape, grad=False) if o.requires_grad else None for o in outputs]
            pairs = [(o, g) for o, g in zip(outputs, upstream) if g is not None]
            wanted = [t for t in tensors if t.requires_grad]
            found = iter(gradients([o for o, _ in pairs], wanted, [g for _, g in pairs]))
            case["grad_outputs"] = [None if g is None else plain(g) for g in upstream]
            case["grads"] = [plain(next(found)) if t.requires_grad else None for t in tensors]
        if note:
            case["note"] = note
        if not f32:
            case["f32"] = False
        self.append(case)


def write(path, cases):
    document = {"torch": torch.__version__.split("+")[0], "seed": SEED, "cases": cases}
    # One case a line: compact, and a change to a case is a change to its line.
    head = json.dumps({k: v for k, v in document.items() if k != "cases"}, separators=(",", ":"))
    lines = ",\n".join(json.dumps(c, separators=(",", ":"), allow_nan=False) for c in cases)
    path.write_text(f'{head[:-1]},"cases":[\n{lines}\n]}}\n')
