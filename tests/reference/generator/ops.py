"""Cases for every operation on tensors, a function a file: elementwise, reductions, shapes, indexing, products."""
import math

import torch
import torch.nn.functional as F

from .common import Cases
from .neural import neural  # noqa: F401  (the sixth file; its cases are long enough for one of their own)

INF, NAN = math.inf, math.nan


def f64(values, grad=True):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def elementwise():
    c = Cases()
    binary = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
    for op, function in binary.items():
        # A divisor stays away from zero.
        other = lambda n, *s, op=op: n.uniform(*s, low=0.5, high=2.5) if op == "div" else n.normal(*s)
        c.add(op, "same shape", function, lambda n: [n.normal(3, 4), other(n, 3, 4)])
        c.add(op, "row broadcast", function, lambda n: [n.normal(3, 4), other(n, 4)])
        c.add(op, "both broadcast", function, lambda n: [n.normal(3, 1, 2), other(n, 4, 1)])
        c.add(op, "zero-dimensional tensor", function, lambda n: [n.normal(2, 3), other(n)])
        c.add(op, "left needs no gradient", function, lambda n: [n.normal(4, grad=False), other(n, 2, 4)])
        c.add(op, "empty", function, lambda n: [n.normal(0, 3), other(n, 3)])
        c.add(op, "integer beside float", function, lambda n: [n.normal(2, 3), n.integers(1, 5, 3)])
        c.add(f"{op}_scalar", "tensor, scalar", lambda x: function(x, 2.5), lambda n: n.normal(5), scalar=2.5)
    for op, function in list(binary.items())[:3]:
        c.add(op, "integers", function, lambda n: [n.integers(-9, 9, 2, 3), n.integers(-9, 9, 3)])
        if op != "sub":
            c.add(op, "bool beside float", function, lambda n: [n.normal(2, 3), n.booleans(2, 1)])
    c.add("div", "integers", torch.div, [torch.tensor([7, -9, 2]), torch.tensor([2, 4, 3])])
    c.add("div", "by zero", torch.div, [f64([1, -1, 0]), f64([0, 0, 0], grad=False)])
    c.add("scalar_sub", "scalar, tensor", lambda x: 1.5 - x, lambda n: n.normal(5), scalar=1.5)
    c.add("scalar_div", "scalar, tensor", lambda x: 1.5 / x, lambda n: n.uniform(5, low=0.5, high=2), scalar=1.5)

    positive = {"log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal}
    real = {"neg": torch.neg, "exp": torch.exp, "abs": torch.abs, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
            "relu": torch.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
            "silu": F.silu, "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "square": torch.square,
            "sign": torch.sign}
    for op, function in positive.items():
        c.add(op, "vector", function, lambda n: n.uniform(12, low=0.05, high=4))
        c.add(op, "matrix", function, lambda n: n.uniform(3, 5, low=0.05, high=40))
        c.add(op, "zero-dimensional", function, lambda n: n.uniform(low=0.5, high=2))
        c.add(op, "special values", function, [f64([0, -1, INF, NAN], grad=False)])
    for op, function in real.items():
        c.add(op, "vector", function, lambda n: n.normal(19, scale=1.5))
        c.add(op, "matrix", function, lambda n: n.normal(3, 5, scale=3))
        c.add(op, "zero-dimensional", function, lambda n: n.normal())
        c.add(op, "empty", function, lambda n: n.normal(0))
        c.add(op, "far out", function, [f64([-700, -120, -30, -6, -0.0, 0, 6, 30])], f32=op in ("neg", "abs", "relu", "sign"))
        if op not in ("sin", "cos", "gelu", "gelu_tanh", "silu"):
            c.add(op, "special values", function, [f64([INF, -INF, NAN], grad=False)])
    for exponent in (2, 3, 0.5, -1, 1, 0, -1.5):
        low = 0.2 if exponent != int(exponent) else -3
        c.add("pow", f"exponent {exponent}", lambda x: x.pow(exponent),
              lambda n: n.uniform(7, low=low, high=3), exponent=exponent)
    c.add("pow", "square at zero", lambda x: x.pow(2), [f64([0, 1])], exponent=2)
    c.add("pow", "first power at zero", lambda x: x.pow(1), [f64([0, 1])], exponent=1)
    c.add("pow", "power zero at zero", lambda x: x.pow(0), [f64([0, 1])], exponent=0)

    c.add("pow_tensor", "broadcast", torch.pow, lambda n: [n.uniform(3, 4, low=0.2, high=3), n.normal(4)])
    c.add("pow_tensor", "base zero", torch.pow, [f64([0, 0, 2]), f64([2, 1, 0])])
    c.add("scalar_pow", "scalar, tensor", lambda x: torch.pow(1.5, x), lambda n: n.normal(5), scalar=1.5)

    c.add("clamp", "both", lambda x: x.clamp(-0.5, 1), lambda n: n.normal(12), min=-0.5, max=1)
    c.add("clamp", "min", lambda x: x.clamp(min=-0.5), lambda n: n.normal(12), min=-0.5)
    c.add("clamp", "max", lambda x: x.clamp(max=0.25), lambda n: n.normal(12), max=0.25)
    c.add("clamp", "at the bounds", lambda x: x.clamp(-1, 1), [f64([-2, -1, 0, 1, 2])], min=-1, max=1)
    for op, function in {"maximum": torch.maximum, "minimum": torch.minimum}.items():
        c.add(op, "same shape", function, lambda n: [n.normal(3, 4), n.normal(3, 4)])
        c.add(op, "broadcast", function, lambda n: [n.normal(3, 1), n.normal(4)])
        c.add(op, "ties", function, [f64([1, 2, 3]), f64([1, 3, 2])])
        c.add(op, "nan", function, [f64([1, NAN, NAN], grad=False), f64([NAN, 1, NAN], grad=False)])

    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        function = getattr(torch, op)
        c.add(op, "floats", function, lambda n: [n.integers(0, 3, 3, 4).double(), n.integers(0, 3, 4).double()])
        c.add(op, "integers", function, lambda n: [n.integers(0, 3, 3, 4), n.integers(0, 3, 3, 1)])
        c.add(op, "nan", function, [f64([1, NAN, NAN], grad=False), f64([NAN, 1, NAN], grad=False)])
        c.add(f"{op}_scalar", "scalar", lambda x: function(x, 1), lambda n: n.integers(0, 3, 8).double(), scalar=1)
        c.add(f"scalar_{op}", "scalar first", lambda x: function(torch.ones(()), x), lambda n: n.integers(0, 3, 8).double(), scalar=1)
    for op in ("logical_and", "logical_or", "logical_xor"):
        c.add(op, "broadcast", getattr(torch, op), lambda n: [n.booleans(3, 4), n.booleans(4)])
    c.add("logical_not", "bool", torch.logical_not, lambda n: n.booleans(7))

    c.add("where", "same shape", torch.where, lambda n: [n.booleans(3, 4), n.normal(3, 4), n.normal(3, 4)])
    c.add("where", "broadcast", torch.where, lambda n: [n.booleans(3, 1), n.normal(4), n.normal(2, 3, 4)])
    c.add("isfinite", "each kind", torch.isfinite, [f64([0, INF, -INF, NAN, 1e30], grad=False)])
    c.add("where_scalar", "tensor, scalar", lambda m, x: torch.where(m, x, 2.5), lambda n: [n.booleans(3, 4), n.normal(4)], scalar=2.5)
    c.add("scalar_where", "scalar, tensor", lambda m, x: torch.where(m, 2.5, x), lambda n: [n.booleans(3, 4), n.normal(4)], scalar=2.5)
    c.add("where", "unselected inf and nan", torch.where,
          [torch.tensor([True, False, True]), f64([1, INF, 2]), f64([NAN, 3, -INF])])
    c.add("masked_fill", "same shape", lambda x, m: x.masked_fill(m, -2.5),
          lambda n: [n.normal(3, 4), n.booleans(3, 4)], value=-2.5)
    c.add("masked_fill", "broadcast mask", lambda x, m: x.masked_fill(m, 0),
          lambda n: [n.normal(2, 3, 4), n.booleans(3, 1)], value=0)
    c.add("masked_fill", "infinite value", lambda x, m: x.masked_fill(m, -INF),
          lambda n: [n.normal(3, 4), n.booleans(4)], value="-inf")
    c.add("masked_fill", "infinite input", lambda x, m: x.masked_fill(m, 0),
          [f64([1, INF]), torch.tensor([False, True])], value=0)
    return c


def reductions():
    c = Cases()
    dims_of = {"all": None, "dim 0": [0], "dim -1": [-1], "dims 0 2": [0, 2], "dims -1 1": [-1, 1], "every dim": [0, 1, 2]}

    def reduce(op, function, make, dims=dims_of):
        for label, dim in dims.items():
            for keepdim in (False, True):
                if dim is None and keepdim:
                    continue
                args = {} if dim is None else {"dims": dim, "keepdim": keepdim}
                every = dim if dim is not None else [0, 1, 2]
                c.add(op, label + (" keepdim" if keepdim else ""), lambda x: function(x, every, keepdim), make, **args)

    normal = lambda n: n.normal(2, 3, 4)
    distinct = lambda n: n.distinct(2, 3, 4)
    reduce("sum", lambda x, d, k: x.sum(d, k), normal)
    reduce("mean", lambda x, d, k: x.mean(d, k), normal)
    reduce("logsumexp", lambda x, d, k: x.logsumexp(d, k), lambda n: n.normal(2, 3, 4, scale=4))
    reduce("any", lambda x, d, k: x.any(d, k), lambda n: n.booleans(2, 3, 4, p=0.25))
    reduce("all", lambda x, d, k: x.all(d, k), lambda n: n.booleans(2, 3, 4, p=0.75))
    for correction in (1, 0):
        for label, dim in dims_of.items():
            for keepdim in (False,) if dim is None else (False, True):
                args = {} if dim is None else {"dims": dim, "keepdim": keepdim}
                every = dim if dim is not None else [0, 1, 2]
                c.add("var", f"{label}{' keepdim' if keepdim else ''} correction {correction}",
                      lambda x: x.var(every, correction=correction, keepdim=keepdim), normal,
                      correction=correction, **args)

    c.add("norm", "all", torch.linalg.vector_norm, normal)
    for op in ("max", "min"):
        c.add(op, "all", getattr(torch, op), distinct)
        c.add(op, "integers", getattr(torch, op), lambda n: n.integers(-50, 50, 3, 4))
        # Over one dim: values and indices.
        for dim in (0, 1, -1):
            for keepdim in (False, True):
                c.add(f"{op}_dim", f"dim {dim}{' keepdim' if keepdim else ''}",
                      lambda x: list(getattr(torch, op)(x, dim, keepdim)), distinct, dim=dim, keepdim=keepdim)
        c.add(f"{op}_dim", "the first of equals", lambda x: list(getattr(torch, op)(x, 1)),
              [f64([[3, 1, 3, 1], [2, 2, 2, 2]])], dim=1, keepdim=False)
        c.add(f"{op}_dim", "integers", lambda x: list(getattr(torch, op)(x, 1)),
              [torch.tensor([[3, -1, 5], [7, 9, 8]])], dim=1, keepdim=False)
        arg = getattr(torch, f"arg{op}")
        c.add(f"arg{op}", "all", arg, lambda n: n.distinct(2, 3, 4, grad=False))
        for dim in (0, 1, -1):
            c.add(f"arg{op}", f"dim {dim}", lambda x: arg(x, dim), lambda n: n.distinct(2, 3, 4, grad=False),
                  dim=dim, keepdim=False)
        c.add(f"arg{op}", "keepdim", lambda x: arg(x, 1, True), lambda n: n.distinct(2, 3, 4, grad=False),
              dim=1, keepdim=True)

    c.add("sum", "empty", lambda x: x.sum(), lambda n: n.normal(0))
    c.add("sum", "empty dim", lambda x: x.sum([0]), lambda n: n.normal(0, 3), dims=[0], keepdim=False)
    c.add("sum", "zero-dimensional", lambda x: x.sum(), lambda n: n.normal())
    c.add("sum", "integers", lambda x: x.sum(), lambda n: n.integers(-9, 9, 3, 4))
    c.add("sum", "bools are counted", lambda x: x.sum(), lambda n: n.booleans(3, 4))
    c.add("sum", "long", lambda x: x.sum([-1]), lambda n: n.normal(2, 67), dims=[-1], keepdim=False)
    c.add("mean", "long", lambda x: x.mean([0]), lambda n: n.normal(67, 3), dims=[0], keepdim=False)
    c.add("logsumexp", "every -inf", lambda x: x.logsumexp([0]), [f64([-INF, -INF], grad=False)], dims=[0], keepdim=False)
    c.add("logsumexp", "one -inf", lambda x: x.logsumexp([0]), [f64([-INF, 1])], dims=[0], keepdim=False)
    c.add("logsumexp", "large", lambda x: x.logsumexp([0]), [f64([1000, 1001, 1002])], dims=[0], keepdim=False)
    c.add("norm", "at zero", torch.linalg.vector_norm, [f64([0, 0])])
    c.add("any", "empty", lambda x: x.any(), lambda n: n.booleans(0))
    c.add("all", "empty", lambda x: x.all(), lambda n: n.booleans(0))
    return c


def shapes():
    c = Cases()
    make = lambda n: n.normal(2, 3, 4)
    for shape in ([6, 4], [2, -1], [24], [1, 2, 3, 1, 4], [-1]):
        c.add("view", f"to {shape}", lambda x: x.view(shape), make, shape=shape)
        c.add("reshape", f"to {shape}", lambda x: x.reshape(shape), make, shape=shape)
    c.add("reshape", "after transpose", lambda x: x.transpose(0, 2).reshape(8, 3), make, shape=[8, 3], transpose=[0, 2])
    c.add("reshape", "of an expanded row", lambda x: x.expand(2, 2).reshape(4), lambda n: n.normal(1, 2),
          shape=[4], expand=[2, 2])
    for start, end in ((0, -1), (1, 2), (0, 1), (-1, -1)):
        c.add("flatten", f"{start} to {end}", lambda x: x.flatten(start, end), make, start=start, end=end)
    for dims in ([2, 0, 1], [0, 2, 1], [-1, 1, 0], [0, 1, 2]):
        c.add("permute", f"{dims}", lambda x: x.permute(dims), make, dims=dims)
        c.add("contiguous", f"of permute {dims}", lambda x: x.permute(dims).contiguous(), make, permute=dims)
    for a, b in ((0, 1), (-1, -2), (0, 2), (1, 1)):
        c.add("transpose", f"{a} {b}", lambda x: x.transpose(a, b), make, dim0=a, dim1=b)
    c.add("t", "matrix", torch.t, lambda n: n.normal(2, 3))
    for shape in ([4, 3], [2, 4, 3], [-1, 3], [4, -1]):
        c.add("expand", f"row to {shape}", lambda x: x.expand(shape), lambda n: n.normal(1, 3) if shape != [-1, 3] else n.normal(4, 1),
              shape=shape)
    c.add("squeeze", "every", lambda x: x.squeeze(), lambda n: n.normal(1, 3, 1, 2))
    for dim in (0, 2, -2, 1):
        c.add("squeeze", f"dim {dim}", lambda x: x.squeeze(dim), lambda n: n.normal(1, 3, 1, 2), dim=dim)
    for dim in (0, 1, -1, 3, -4):
        c.add("unsqueeze", f"dim {dim}", lambda x: x.unsqueeze(dim), make, dim=dim)
    every = slice(None)
    for dim, start, end, step in ((0, 0, 1, 1), (1, 1, 3, 1), (2, 0, 4, 2), (2, 1, 4, 3), (-1, -3, -1, 1), (1, 1, 100, 1),
                                  (1, 2, 2, 1)):
        at = [every] * 3
        at[dim] = slice(start, end, step)
        c.add("slice", f"dim {dim} {start}:{end}:{step}", lambda x: x[tuple(at)], make, dim=dim, start=start, end=end,
              step=step)
    for dim, start, length in ((0, 1, 1), (1, 0, 2), (2, 1, 3), (-1, 3, 0)):
        c.add("narrow", f"dim {dim} from {start}, {length}", lambda x: x.narrow(dim, start, length), make, dim=dim,
              start=start, length=length)
    for dim, index in ((0, 1), (1, 2), (-1, 0), (2, -1)):
        c.add("select", f"dim {dim} index {index}", lambda x: x.select(dim, index), make, dim=dim, index=index)
    for dim in (0, 1, -1):
        sizes = [[2, 3], [2, 3], [2, 3]]
        for i, size in enumerate(sizes):
            size[dim] = i + 1
        c.add("cat", f"dim {dim}", lambda *x: torch.cat(x, dim), lambda n: [n.normal(*s) for s in sizes], dim=dim)
        c.add("stack", f"dim {dim}", lambda *x: torch.stack(x, dim), lambda n: [n.normal(2, 3) for _ in range(3)], dim=dim)
    c.add("cat", "one needs no gradient", lambda *x: torch.cat(x, 0),
          lambda n: [n.normal(2, 3), n.normal(1, 3, grad=False), n.normal(2, 3)], dim=0)
    for size, dim in ((2, 0), (2, 1), (5, 1), (3, -1)):
        c.add("split", f"size {size} dim {dim}", lambda x: x.split(size, dim), lambda n: n.normal(4, 5), size=size, dim=dim)
    c.add("split", "given sizes", lambda x: x.split([1, 3, 1], 1), lambda n: n.normal(2, 5), sizes=[1, 3, 1], dim=1)
    for chunks, dim in ((2, 0), (2, 1), (3, 1), (4, -1)):
        c.add("chunk", f"{chunks} dim {dim}", lambda x: x.chunk(chunks, dim), lambda n: n.normal(4, 5), chunks=chunks, dim=dim)
    for dims in ([0], [1], [-1, 0], [0, 1, 2]):
        c.add("flip", f"{dims}", lambda x: x.flip(dims), make, dims=dims)
    for diagonal in (0, 1, -1, 3, -4):
        c.add("triu", f"diagonal {diagonal}", lambda x: x.triu(diagonal), lambda n: n.normal(3, 4), diagonal=diagonal)
        c.add("tril", f"diagonal {diagonal}", lambda x: x.tril(diagonal), lambda n: n.normal(3, 4), diagonal=diagonal)
    c.add("tril", "batched", lambda x: x.tril(), lambda n: n.normal(2, 3, 3), diagonal=0)
    c.add("triu", "batched", lambda x: x.triu(1), lambda n: n.normal(2, 3, 3), diagonal=1)

    # Creation.
    for start, end, step in ((0, 7, 1), (2, 9, 3), (5, 0, -2)):
        c.add("arange", f"{start} {end} {step}", lambda: torch.arange(start, end, step), [], start=start, end=end, step=step)
    c.add("arange_float", "quarter steps", lambda: torch.arange(0, 2, 0.25, dtype=torch.float64), [], start=0, end=2, step=0.25)
    for start, end, count in ((0, 1, 5), (-2, 3, 11), (1, 1, 3), (4, 9, 1), (0, 1, 0)):
        c.add("linspace", f"{start} {end} {count}", lambda: torch.linspace(start, end, count, dtype=torch.float64), [],
              start=start, end=end, count=count)
    c.add("eye", "square", lambda: torch.eye(3, dtype=torch.float64), [], n=3)
    c.add("eye", "wide", lambda: torch.eye(2, 4, dtype=torch.float64), [], n=2, m=4)
    for op, value in {"zeros": 0, "ones": 1, "full": 2.5}.items():
        c.add(op, "matrix", lambda: torch.full((2, 3), float(value), dtype=torch.float64), [], shape=[2, 3], value=value)
        like = getattr(torch, f"{op}_like")
        c.add(f"{op}_like", "matrix", lambda x: like(x, value) if op == "full" else like(x),
              lambda n: n.normal(2, 3, grad=False), value=value)
    return c


def indexing():
    c = Cases()
    for dim, shape in ((0, (4, 3)), (1, (2, 5)), (-1, (2, 2))):
        c.add("gather", f"dim {dim}", lambda x, i: x.gather(dim, i),
              lambda n: [n.normal(3, 4), n.integers(0, (3, 4)[dim], *[min(s, e) if d != dim % 2 else s
                                                                        for d, (s, e) in enumerate(zip(shape, (3, 4)))])], dim=dim)
    c.add("gather", "the same element twice", lambda x, i: x.gather(0, i), [f64([0.5]), torch.tensor([0, 0])], dim=0)
    c.add("gather", "three dims", lambda x, i: x.gather(1, i), lambda n: [n.normal(2, 3, 4), n.integers(0, 3, 2, 2, 4)], dim=1)
    for dim in (0, 1, -1):
        c.add("scatter_add", f"dim {dim}", lambda x, i, s: x.scatter_add(dim, i, s),
              lambda n: [n.normal(3, 4), n.integers(0, 3, 3, 4), n.normal(3, 4)], dim=dim)
    c.add("scatter_add", "smaller source", lambda x, i, s: x.scatter_add(0, i, s),
          lambda n: [n.normal(4, 3), n.integers(0, 4, 2, 2), n.normal(2, 2)], dim=0)
    for dim in (0, 1, -1):
        c.add("index_select", f"dim {dim}", lambda x, i: x.index_select(dim, i),
              lambda n: [n.normal(3, 4, 2), n.integers(0, 2, 5)], dim=dim)
    c.add("index_select", "no index", lambda x, i: x.index_select(0, i), lambda n: [n.normal(3, 2), n.integers(0, 3, 0)], dim=0)
    c.add("embedding", "matrix of ids", lambda w, i: F.embedding(i, w), lambda n: [n.normal(5, 3), n.integers(0, 5, 2, 4)])
    c.add("embedding", "one id many times", lambda w, i: F.embedding(i, w), lambda n: [n.normal(3, 2), torch.tensor([1, 1, 1, 0])])
    c.add("embedding", "padding row", lambda w, i: F.embedding(i, w, padding_idx=1),
          lambda n: [n.normal(3, 2), torch.tensor([[1, 0, 1], [2, 1, 0]])], padding_idx=1)
    for dim in (0, -1):
        c.add("index_add", f"dim {dim}", lambda x, i, s: x.index_add(dim, i, s),
              lambda n: [n.normal(3, 3), n.integers(0, 3, 4), n.normal(*((4, 3) if dim == 0 else (3, 4)))], dim=dim)
    c.add("embedding", "one id", lambda w, i: F.embedding(i, w), lambda n: [n.normal(3, 2), torch.tensor(2)])
    c.add("one_hot", "vector", lambda i: F.one_hot(i, 5), lambda n: n.integers(0, 5, 4), classes=5)
    c.add("one_hot", "matrix", lambda i: F.one_hot(i, 3), lambda n: n.integers(0, 3, 2, 3), classes=3)
    c.add("one_hot", "classes from the largest", lambda i: F.one_hot(i), [torch.tensor([0, 3, 1])])
    return c


def products():
    c = Cases()
    pairs = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((1, 1), (1, 1)), ((5, 2, 3), (5, 3, 4)),
             ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((2, 1, 2, 3), (3, 3, 2)), ((2, 3, 2, 2), (2, 1, 2, 3)),
             ((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((4, 3, 2, 3), (3,)), ((0, 3), (3, 2)), ((2, 0), (0, 3)),
             ((7, 17), (17, 5)), ((1, 3), (5, 3, 1)), ((2, 3), (1, 3, 2))]
    for a, b in pairs:
        c.add("matmul", f"{list(a)} x {list(b)}", torch.matmul, lambda n: [n.normal(*a), n.normal(*b)])
    c.add("matmul", "left transposed", lambda a, b: a.t() @ b, lambda n: [n.normal(3, 2), n.normal(3, 4)], transpose_left=True)
    c.add("matmul", "right transposed", lambda a, b: a @ b.transpose(-1, -2), lambda n: [n.normal(2, 2, 3), n.normal(2, 4, 3)],
          transpose_right=True)
    c.add("matmul", "both transposed", lambda a, b: a.t() @ b.t(), lambda n: [n.normal(3, 2), n.normal(4, 3)],
          transpose_left=True, transpose_right=True)
    c.add("matmul", "right needs no gradient", torch.matmul, lambda n: [n.normal(2, 3), n.normal(3, 2, grad=False)])
    for shape in ((3,), (4, 3), (2, 4, 3), (0, 3)):
        c.add("linear", f"{list(shape)} with bias", F.linear, lambda n: [n.normal(*shape), n.normal(5, 3), n.normal(5)])
        c.add("linear", f"{list(shape)} without bias", F.linear, lambda n: [n.normal(*shape), n.normal(5, 3)])
    return c
