"""Golden attention: what PyTorch computes in float64, by the definition, with autograd for the gradients.

    make_attention.py check FOLDER...           computes every case of the folders again from its own inputs and compares
    make_attention.py make FOLDER [--seed N]    writes the named cases below with fresh inputs
    make_attention.py make FOLDER --random N    and N cases with random sizes and options

The inputs of data/attention were drawn once and are kept as data; `check` is how their results were made sure of, with PyTorch 2.11 and 2.15
and safetensors 0.6. Needs torch, numpy and safetensors; nothing of heed.
"""
import argparse
import json
import pathlib
import sys

import numpy
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

LARGE = 64 * 1024  # weights of more elements are left out
GRADIENTS = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sinks": "dsinks"}


def positions(spec, queries, keys):
    first = 0 if spec.get("align") == "top-left" else keys - queries
    return torch.arange(queries, dtype=torch.float64) + first, torch.arange(keys, dtype=torch.float64)


def visible(spec, inputs, shape):
    """[B,H,T,S]: which query may see which key."""
    batch, heads, queries, keys = shape
    p, j = positions(spec, queries, keys)
    sees = torch.ones(queries, keys, dtype=torch.bool)
    left, right = spec.get("window") or (-1, -1)
    if spec.get("causal"):
        sees &= j[None, :] <= p[:, None]
    if left >= 0:
        sees &= j[None, :] >= p[:, None] - left
    if right >= 0:
        sees &= j[None, :] <= p[:, None] + right
    sees = sees.expand(shape).clone()
    if "mask" in inputs:
        sees &= torch.from_numpy(inputs["mask"]).bool()
    if "key_lengths" in inputs:
        sees &= j < torch.from_numpy(inputs["key_lengths"])[:, None, None, None]
    if "bias" in inputs:
        sees &= ~torch.isneginf(torch.from_numpy(inputs["bias"]))
    return sees


def attention(spec, inputs):
    """Results as named tensors; the order of the steps is that of <heed/attention.h>."""
    leaf = {name: torch.from_numpy(inputs[name]).double().requires_grad_() for name in GRADIENTS if name in inputs}
    q, k, v = leaf["q"], leaf["k"], leaf["v"]
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = spec.get("scale")
    x = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if spec.get("softcap"):
        x = spec["softcap"] * torch.tanh(x / spec["softcap"])
    sees = visible(spec, inputs, x.shape)
    if "bias" in leaf:
        x = x + torch.where(torch.isneginf(leaf["bias"]), 0.0, leaf["bias"])
    if "alibi_slopes" in inputs:
        p, j = positions(spec, x.shape[2], x.shape[3])
        x = x - torch.from_numpy(inputs["alibi_slopes"]).double()[None, :, None, None] * (p[:, None] - j[None, :]).abs()
    # Hidden scores take no part, not even as -infinity, so that rows that see nothing have gradients of 0 and not NaN.
    top = torch.where(sees, x, -torch.inf).amax(-1, keepdim=True).detach()
    if "sinks" in leaf:
        top = torch.maximum(top, leaf["sinks"].detach()[None, :, None, None])
    top = torch.where(torch.isneginf(top), 0.0, top)
    e = torch.where(sees, torch.exp(torch.where(sees, x, top) - top), 0.0)
    total = e.sum(-1, keepdim=True)
    if "sinks" in leaf:
        total = total + torch.exp(leaf["sinks"][None, :, None, None] - top)
    weights = e / torch.where(total == 0, 1.0, total)
    lse = (top + torch.log(total)).squeeze(-1)
    kept = weights
    if "dropout_keep" in inputs:
        kept = weights * torch.from_numpy(inputs["dropout_keep"]).double() / (1 - spec["dropout"])
    out = kept @ v
    (out * torch.from_numpy(inputs["dout"]).double()).sum().backward()
    results = {"out": out, "lse": lse}
    results.update({GRADIENTS[name]: tensor.grad for name, tensor in leaf.items()})
    if weights.numel() <= LARGE:
        results["weights"] = weights.float()
    return {name: tensor.detach().numpy() for name, tensor in results.items()}


def read(path):
    with safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["spec"]), {name: file.get_tensor(name) for name in file.keys()}


def largest_difference(got, expected):
    """Relative to the largest expected value; infinities have to agree."""
    infinite = numpy.isinf(expected)
    if got.shape != expected.shape or not numpy.array_equal(got[infinite], expected[infinite]):
        return float("inf")
    if not (~infinite).any():
        return 0.0
    scale = max(float(numpy.abs(expected[~infinite]).max()), 1e-30)
    return float(numpy.abs(got[~infinite] - expected[~infinite]).max()) / scale


def check(folders):
    worst = 0.0
    files = sorted(path for folder in folders for path in pathlib.Path(folder).glob("*.safetensors"))
    for path in files:
        spec, tensors = read(path)
        results = attention(spec, tensors)
        for name, expected in tensors.items():
            if name not in results:
                continue
            difference = largest_difference(results[name].astype(numpy.float64), expected.astype(numpy.float64))
            allowed = 1e-6 if expected.dtype == numpy.float32 else 1e-9
            worst = max(worst, difference if expected.dtype == numpy.float64 else 0)
            if not difference <= allowed:
                sys.exit(f"{path}: {name} differs by {difference:.1e}, allowed {allowed:.0e}")
    print(f"{len(files)} cases agree with PyTorch {torch.__version__}; largest relative difference {worst:.1e}")
    if not files:
        sys.exit("no case found")


# name: sizes (B, H, G, T, S, D, E) and options.
NAMED = {
    "mha": ((2, 2, 2, 7, 7, 8, 8), {}),
    "gqa": ((2, 4, 2, 6, 9, 8, 8), {}),
    "mqa": ((2, 4, 1, 6, 9, 8, 8), {}),
    "cross-dv": ((2, 2, 2, 5, 9, 8, 12), {}),
    "odd-dims": ((1, 3, 1, 5, 11, 7, 5), {}),
    "one-query": ((2, 2, 2, 1, 17, 16, 16), {"causal": True}),
    "causal": ((2, 2, 2, 9, 9, 8, 8), {"causal": True}),
    "causal-rect": ((1, 2, 2, 4, 9, 8, 8), {"causal": True}),
    "causal-rect-topleft": ((1, 2, 2, 4, 9, 8, 8), {"causal": True, "align": "top-left"}),
    "causal-more-queries": ((1, 2, 2, 9, 4, 8, 8), {"causal": True}),
    "window": ((1, 2, 2, 12, 12, 8, 8), {"causal": True, "window": [3, 0]}),
    "window-two-sided": ((1, 2, 2, 12, 12, 8, 8), {"window": [2, 3]}),
    "alibi": ((1, 4, 4, 9, 9, 8, 8), {"causal": True, "alibi": True}),
    "scale": ((1, 2, 2, 6, 6, 8, 8), {"scale": 0.3}),
    "softcap": ((1, 2, 2, 6, 6, 8, 8), {"softcap": 5.0}),
    "sinks": ((2, 4, 2, 6, 6, 8, 8), {"causal": True, "sinks": True}),
    "bias-full": ((2, 2, 2, 6, 7, 8, 8), {"bias": "full"}),
    "bias-head": ((2, 2, 2, 6, 7, 8, 8), {"bias": "head"}),
    "bias-one": ((2, 2, 2, 6, 7, 8, 8), {"bias": "one"}),
    "bias-key": ((2, 2, 2, 6, 7, 8, 8), {"bias": "key"}),
    "mask": ((2, 2, 2, 8, 8, 8, 8), {"mask": True}),
    "dead-rows": ((2, 2, 2, 8, 8, 8, 8), {"mask": True, "dead": True}),
    "lengths": ((3, 2, 2, 6, 9, 8, 8), {"lengths": True}),
    "dropout": ((2, 2, 2, 8, 8, 8, 8), {"dropout": 0.3}),
    "longish": ((1, 2, 1, 150, 200, 64, 64), {"causal": True}),
    "large-scores": ((1, 2, 2, 8, 8, 16, 16), {"large": True}),
    "everything": ((2, 4, 2, 9, 12, 8, 10), {"causal": True, "window": [5, 0], "softcap": 8.0, "bias": "full", "alibi": True,
                                            "mask": True, "lengths": True, "sinks": True, "dropout": 0.2, "scale": 0.2}),
}


def inputs_for(sizes, options, rng):
    b, h, g, t, s, d, e = sizes
    factor = 30 if options.get("large") else 1
    inputs = {"q": rng.normal(size=(b, h, t, d)) * factor, "k": rng.normal(size=(b, g, s, d)), "v": rng.normal(size=(b, g, s, e)),
              "dout": rng.normal(size=(b, h, t, e))}
    shapes = {"full": (b, h, t, s), "head": (1, h, t, s), "one": (1, 1, t, s), "key": (b, 1, 1, s)}
    if options.get("bias"):
        inputs["bias"] = rng.normal(size=shapes[options["bias"]])
    if options.get("sinks"):
        inputs["sinks"] = rng.normal(size=h)
    inputs = {name: x.astype(numpy.float32) for name, x in inputs.items()}
    if options.get("mask"):
        mask = rng.random((b, 1, t, s)) < 0.7
        mask[..., 0] = True
        if options.get("dead"):
            mask[:, :, :: 3] = False
        inputs["mask"] = mask.astype(numpy.uint8)
    if options.get("lengths"):
        inputs["key_lengths"] = rng.integers(1, s + 1, b)
    if options.get("alibi"):
        inputs["alibi_slopes"] = 2.0 ** (-8 * numpy.arange(1, h + 1) / h)
    if options.get("dropout"):
        inputs["dropout_keep"] = (rng.random((b, h, t, s)) >= options["dropout"]).astype(numpy.uint8)
    return inputs


def random_case(rng):
    g = int(rng.integers(1, 4))
    t, s = (int(n) for n in rng.integers(1, 70, 2))
    sizes = (int(rng.integers(1, 4)), g * int(rng.integers(1, 4)), g, t, s, int(rng.integers(1, 80)), int(rng.integers(1, 80)))
    options = {}

    def sometimes(name, value):
        if rng.random() < 0.3:
            options[name] = value
    sometimes("causal", True)
    sometimes("align", "top-left")
    sometimes("window", [int(n) for n in rng.integers(-1, 20, 2)])
    sometimes("scale", float(rng.uniform(0.05, 1)))
    sometimes("softcap", float(rng.uniform(1, 30)))
    sometimes("bias", str(rng.choice(["full", "head", "one", "key"])))
    for name in ("alibi", "mask", "dead", "lengths", "sinks"):
        sometimes(name, True)
    sometimes("dropout", 0.25)
    return sizes, options


def make(folder, seed, randoms):
    rng = numpy.random.default_rng(seed)
    cases = dict(NAMED)
    cases.update({f"random-{n}": random_case(rng) for n in range(randoms)})
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, (sizes, options) in cases.items():
        spec = {key: value for key, value in options.items() if key not in ("dead", "large")}
        inputs = inputs_for(sizes, options, rng)
        tensors = {key: numpy.ascontiguousarray(x) for key, x in {**inputs, **attention(spec, inputs)}.items()}
        save_file(tensors, folder / f"{name}.safetensors", metadata={"spec": json.dumps(spec), "made_with": f"torch {torch.__version__}"})
    print(f"{len(cases)} cases in {folder}, PyTorch {torch.__version__}, seed {seed}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument("folders", nargs="+")
    maker = commands.add_parser("make")
    maker.add_argument("folder")
    maker.add_argument("--seed", type=int, default=1)
    maker.add_argument("--random", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.command == "check":
        check(arguments.folders)
    else:
        make(arguments.folder, arguments.seed, arguments.random)


if __name__ == "__main__":
    main()
