"""Cases for softmax, normalisation, losses and attention as functions."""
import math

import torch
import torch.nn.functional as F

from .common import Cases

INF = math.inf


def f64(values, grad=True):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def softmaxes(c):
    for op, function in {"softmax": torch.softmax, "log_softmax": torch.log_softmax}.items():
        for dim in (0, 1, -1):
            c.add(op, f"dim {dim}", lambda x: function(x, dim), lambda n: n.normal(2, 3, 4, scale=3), dim=dim)
        c.add(op, "long rows", lambda x: function(x, -1), lambda n: n.normal(2, 37, scale=2), dim=-1)
        c.add(op, "one element", lambda x: function(x, -1), lambda n: n.normal(3, 1), dim=-1)
        c.add(op, "zero-dimensional", lambda x: function(x, -1), lambda n: n.normal(), dim=-1)
        c.add(op, "empty", lambda x: function(x, -1), lambda n: n.normal(0, 3), dim=-1)
        c.add(op, "large", lambda x: function(x, 0), [f64([1000, 1001, 1002])], dim=0)
        c.add(op, "very negative", lambda x: function(x, 0), [f64([-10000, -10000])], dim=0)
        c.add(op, "one -inf", lambda x: function(x, 0), [f64([-INF, 1, 2], grad=False)], dim=0)


def normalisations(c):
    for shape, over in (((4, 6), [6]), ((2, 3, 5), [5]), ((2, 3, 4), [3, 4]), ((5,), [5]), ((0, 4), [4])):
        name = f"{list(shape)} over {over}"
        norm = {"normalized_shape": over, "eps": 1e-5}
        c.add("layer_norm", name, lambda x, w, b: F.layer_norm(x, over, w, b, 1e-5),
              lambda n: [n.normal(*shape, scale=2), n.normal(*over), n.normal(*over)], **norm)
        c.add("rms_norm", name, lambda x, w: F.rms_norm(x, over, w, 1e-5),
              lambda n: [n.normal(*shape, scale=2), n.normal(*over)], **norm)
    norm = {"normalized_shape": [6], "eps": 0.01}
    c.add("layer_norm", "no weight, no bias", lambda x: F.layer_norm(x, [6], eps=0.01), lambda n: n.normal(3, 6), **norm)
    c.add("layer_norm", "constant weight", lambda x, w, b: F.layer_norm(x, [6], w, b, 0.01),
          lambda n: [n.normal(3, 6), n.normal(6, grad=False), n.normal(6)], **norm)
    c.add("layer_norm", "constant input", lambda x, w, b: F.layer_norm(x, [6], w, b, 0.01),
          lambda n: [n.normal(3, 6, grad=False), n.normal(6), n.normal(6)], **norm)
    c.add("layer_norm", "far from zero", lambda x: F.layer_norm(x, [4]), [f64([[40000, 40001, 40002, 40003]])],
          f32=False, normalized_shape=[4], eps=1e-5)
    c.add("rms_norm", "no weight", lambda x: F.rms_norm(x, [6], eps=0.01), lambda n: n.normal(3, 6), **norm)


def losses(c):
    c.add("mse_loss", "mean", F.mse_loss, lambda n: [n.normal(3, 4), n.normal(3, 4)], reduction="mean")
    c.add("mse_loss", "sum", lambda a, b: F.mse_loss(a, b, reduction="sum"),
          lambda n: [n.normal(3, 4), n.normal(3, 4, grad=False)], reduction="sum")
    c.add("mse_loss", "none", lambda a, b: F.mse_loss(a, b, reduction="none"),
          lambda n: [n.normal(3, 4), n.normal(3, 4)], reduction="none")

    def targets(n, *shape, classes=5, ignore=None):
        t = n.integers(0, classes, *shape)
        if ignore is not None:
            t[n.booleans(*shape, p=0.4)] = ignore
            t.view(-1)[0] = 1  # one counts
            t.view(-1)[-1] = ignore
        return t

    for reduction in ("mean", "sum", "none"):
        r = {"reduction": reduction}
        c.add("binary_cross_entropy_with_logits", reduction, lambda x, y: F.binary_cross_entropy_with_logits(x, y, **r),
              lambda n: [n.normal(3, 4, scale=3), n.uniform(3, 4, grad=False)], **r)
        for smoothing in (0, 0.1):
            for ignore in (None, -100, 2, -1):
                for weighted in (False, True):
                    name = f"{reduction} smoothing {smoothing} ignore {ignore}{' weighted' if weighted else ''}"
                    args = dict(r, label_smoothing=smoothing, ignore_index=-100 if ignore is None else ignore)

                    def loss(x, t, w=None):
                        return F.cross_entropy(x, t, w, ignore_index=args["ignore_index"], reduction=reduction,
                                               label_smoothing=smoothing)

                    c.add("cross_entropy", name, loss, lambda n: [n.normal(6, 5, scale=2), targets(n, 6, ignore=ignore)] +
                          ([n.uniform(5, low=0.2, high=2, grad=False)] if weighted else []), **args)
        for ignore in (None, 2):
            for weighted in (False, True):
                args = dict(r, ignore_index=-100 if ignore is None else ignore)
                c.add("nll_loss", f"{reduction} ignore {ignore}{' weighted' if weighted else ''}",
                      lambda x, t, w=None: F.nll_loss(x, t, w, ignore_index=args["ignore_index"], reduction=reduction),
                      lambda n: [n.normal(6, 5), targets(n, 6, ignore=ignore)] +
                      ([n.uniform(5, low=0.2, high=2, grad=False)] if weighted else []), **args)
    plain = {"reduction": "mean", "label_smoothing": 0, "ignore_index": -100}
    c.add("cross_entropy", "large logits", F.cross_entropy,
          [f64([[1000, 0, -1000], [-500, 500, 499]]), torch.tensor([0, 2])], **plain)
    c.add("cross_entropy", "many classes", F.cross_entropy, lambda n: [n.normal(3, 41, scale=2), targets(n, 3, classes=41)], **plain)
    for reduction in ("mean", "sum", "none"):
        args = dict(plain, reduction=reduction, ignore_index=1, label_smoothing=0.1)
        c.add("cross_entropy", f"further dims {reduction}",
              lambda x, t: F.cross_entropy(x, t, reduction=reduction, ignore_index=1, label_smoothing=0.1),
              lambda n: [n.normal(2, 5, 3), targets(n, 2, 3)], **args)
        reduce = {"mean": torch.mean, "sum": torch.sum, "none": lambda x: x}[reduction]
        c.add("kl_div", reduction, lambda x, y: reduce(F.kl_div(x, y, reduction="none")),
              lambda n: [n.normal(3, 4), n.uniform(3, 4, low=0.1, grad=False)], reduction=reduction)
    c.add("cross_entropy", "one sample", F.cross_entropy, lambda n: [n.normal(5), targets(n)], **plain)
    c.add("nll_loss", "one sample", F.nll_loss, lambda n: [n.normal(5), targets(n)], reduction="mean", ignore_index=-100)
    c.add("kl_div", "target zero", lambda x, y: F.kl_div(x, y, reduction="sum"),
          [f64([-0.5, -0.75]), f64([1, 0], grad=False)], reduction="sum")
    zero = f64(0.0, grad=False)
    c.add("cross_entropy", "every target ignored",
          lambda x, t: torch.where(torch.ones((), dtype=torch.bool), zero, F.cross_entropy(x, t, reduction="sum")),
          lambda n: [n.normal(2, 3), torch.tensor([-100, -100])],
          note="the mean over no target is 0 with gradient 0 in Regard (NaN in PyTorch)", **plain)
    c.add("binary_cross_entropy_with_logits", "extremes", lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
          [f64([0, -100, 30, 8e7]), f64([1, 1, 1, 0], grad=False)], reduction="none", f32=False)
    c.add("binary_cross_entropy_with_logits", "weight", lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, w),
          lambda n: [n.normal(3, 4), n.uniform(3, 4, grad=False), n.uniform(4, grad=False)], reduction="mean", weight=True)
    c.add("binary_cross_entropy_with_logits", "pos_weight",
          lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w),
          lambda n: [n.normal(3, 4), n.uniform(3, 4, grad=False), n.uniform(4, low=0.5, high=2, grad=False)], reduction="mean",
          pos_weight=True)


def bottom_right(queries, keys):
    """Query i may attend to keys up to i + keys - queries, Regard's meaning of causal."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def attention(c):
    op = "scaled_dot_product_attention"

    def qkv(n, lead=(2, 2), queries=3, keys=5, width=4, value_width=None):
        return [n.normal(*lead, queries, width), n.normal(*lead, keys, width), n.normal(*lead, keys, value_width or width)]

    def some(n, *shape):  # every row keeps its first key
        mask = n.booleans(*shape, p=0.6)
        mask[..., 0] = True
        return mask

    attend = F.scaled_dot_product_attention
    c.add(op, "plain", attend, qkv)
    c.add(op, "3-D", attend, lambda n: qkv(n, lead=(2,)))
    c.add(op, "2-D", attend, lambda n: qkv(n, lead=()))
    c.add(op, "value of another width", attend, lambda n: qkv(n, value_width=3))
    c.add(op, "one query", attend, lambda n: qkv(n, queries=1))
    c.add(op, "scale", lambda q, k, v: attend(q, k, v, scale=0.3), qkv, scale=0.3)
    c.add(op, "bool mask", lambda q, k, v, m: attend(q, k, v, m), lambda n: qkv(n) + [some(n, 3, 5)], mask=True)
    c.add(op, "bool mask a head", lambda q, k, v, m: attend(q, k, v, m), lambda n: qkv(n) + [some(n, 2, 2, 3, 5)], mask=True)
    c.add(op, "bool mask a batch", lambda q, k, v, m: attend(q, k, v, m), lambda n: qkv(n) + [some(n, 2, 1, 3, 5)], mask=True)
    c.add(op, "float mask", lambda q, k, v, m: attend(q, k, v, m), lambda n: qkv(n) + [n.normal(3, 5, grad=False)], mask=True)
    c.add(op, "float mask a head, its gradient too", lambda q, k, v, m: attend(q, k, v, m),
          lambda n: qkv(n) + [n.normal(1, 2, 3, 5)], mask=True)
    c.add(op, "causal", lambda q, k, v: attend(q, k, v, is_causal=True), lambda n: qkv(n, queries=5), causal=True)
    c.add(op, "causal and scale", lambda q, k, v: attend(q, k, v, is_causal=True, scale=1.25), lambda n: qkv(n, queries=5),
          causal=True, scale=1.25)
    for queries, keys in ((3, 5), (1, 5), (2, 3)):
        c.add(op, f"causal, {queries} queries and {keys} keys", lambda q, k, v: attend(q, k, v, bottom_right(queries, keys)),
              lambda n: qkv(n, queries=queries, keys=keys), causal=True,
              note="the last query sees every key, as an explicit mask in PyTorch")
    key_mask = lambda n: torch.tensor([[True] * 5, [True, True, True, False, False]])
    spread = lambda m: m[:, None, None, :]
    c.add(op, "key mask", lambda q, k, v, m: attend(q, k, v, spread(m)), lambda n: qkv(n) + [key_mask(n)], key_mask=True)
    c.add(op, "key mask and causal", lambda q, k, v, m: attend(q, k, v, spread(m) & bottom_right(3, 5)),
          lambda n: qkv(n) + [key_mask(n)], key_mask=True, causal=True)
    c.add(op, "bool mask, key mask and causal", lambda q, k, v, a, m: attend(q, k, v, a & spread(m) & bottom_right(3, 5)),
          lambda n: qkv(n) + [some(n, 3, 5), key_mask(n)], mask=True, key_mask=True, causal=True)
    c.add(op, "float mask, key mask and scale",
          lambda q, k, v, a, m: attend(q, k, v, torch.where(spread(m), a, -INF), scale=0.7),
          lambda n: qkv(n) + [n.normal(3, 5, grad=False), key_mask(n)], mask=True, key_mask=True, scale=0.7)
    c.add(op, "float mask and causal", lambda q, k, v, a: attend(q, k, v, torch.where(bottom_right(5, 5), a, -INF)),
          lambda n: qkv(n, queries=5) + [n.normal(5, 5, grad=False)], mask=True, causal=True)

    def with_weights(q, k, v, m=None, scale=0.5):
        scores = q @ k.transpose(-1, -2) * scale
        weights = torch.softmax(scores if m is None else scores.masked_fill(~m, -INF), -1)
        return [weights @ v, weights]

    both = op + "_with_weights"
    c.add(both, "plain", with_weights, qkv)
    c.add(both, "bool mask", with_weights, lambda n: qkv(n) + [some(n, 3, 5)], mask=True)
    c.add(both, "causal", lambda q, k, v: with_weights(q, k, v, bottom_right(3, 5)), qkv, causal=True)
    # A row with nothing to attend to: PyTorch's own function may give zeros or NaN, Regard always zeros.
    mask = torch.tensor([[True, False, True], [False, False, False]])

    def with_an_empty_row(q, k, v, m):
        weights = torch.softmax((q @ k.transpose(-1, -2) / 2).masked_fill(~m, -1e300), -1)
        return torch.where(m.any(-1, keepdim=True), weights, 0) @ v

    c.add(op, "a row with nothing to attend to", with_an_empty_row, lambda n: qkv(n, queries=2, keys=3) + [mask], mask=True,
          note="an empty row gives zeros and no gradient in Regard")


def neural():
    c = Cases()
    softmaxes(c)
    normalisations(c)
    losses(c)
    attention(c)
    return c
