"""heed's linear attention against the plain references of flash-linear-attention (package fla-core): outputs, final
states and gradients, on the CPU.

    pip download --no-deps fla-core && python -m zipfile -e fla_core-*.whl unpacked
    python tests/suites/fla_naive.py unpacked

The files are loaded one by one, as the package itself wants Triton; they need einops. The exit code is 1 where anything
differs by more than a few roundings of float32.
"""

import argparse
import importlib.util
import pathlib
import sys
import time

import torch

import heed.torch


def reference(folder, where, name):
    path = folder / "fla" / "ops" / where / "naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_{where}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


class Problem:
    """Inputs as fla has them, [B,T,H,...]; `values` heads of values."""

    def __init__(self, heads=3, values=3, tokens=77, size=16, value_size=24, rows=False):
        generator = torch.Generator().manual_seed(1)

        def normal(*shape):
            return torch.randn(*shape, generator=generator)

        self.q, self.k = normal(2, tokens, heads, size), torch.nn.functional.normalize(normal(2, tokens, heads, size), dim=-1)
        self.v = normal(2, tokens, values, value_size)
        self.g = torch.nn.functional.logsigmoid(normal(*((2, tokens, values, size) if rows else (2, tokens, values)))) / 4
        self.beta = normal(2, tokens, values).sigmoid()
        self.initial = normal(2, values, size, value_size)
        self.scale = size**-0.5


def ours(p, *, rule="sum", log_decay=True, **options):
    """[B,T,H,E] and the state, of leaves of its own, which come third."""
    names = ["q", "k", "v", "initial"] + (["g"] if log_decay else []) + (["beta"] if rule == "delta" else [])
    leaf = {name: getattr(p, name).clone().requires_grad_() for name in names}
    times = p.v.shape[2] // p.q.shape[2]
    q, k = (leaf[n].repeat_interleave(times, 2).transpose(1, 2) for n in ("q", "k"))
    gates = {}
    if log_decay:
        gates["log_decay"] = leaf["g"].transpose(1, 2)
    if rule == "delta":
        gates["beta"] = leaf["beta"].transpose(1, 2)
    out, state = heed.torch.linear_attention(
        q, k, leaf["v"].transpose(1, 2), initial=(leaf["initial"], None), final=True, feature="identity",
        normalise=False, scale=p.scale, rule=rule, **gates, **options)  # fmt: skip
    return out.transpose(1, 2), state.s, leaf


def theirs(p, function, names, transposed=False):
    leaf = {name: getattr(p, name).clone().requires_grad_() for name in (*names, "initial")}
    given = {n: leaf[n].transpose(1, 2) if transposed else leaf[n] for n in names}
    given = {("gk" if n == "g" and "gk" in function.__code__.co_varnames else n): x for n, x in given.items()}
    out, state = function(**given, initial_state=leaf["initial"], output_final_state=True)
    return out.transpose(1, 2) if transposed else out, state, leaf


def difference(a, b):
    return float((a - b).detach().abs().max() / b.detach().abs().max())


def compare(a, b):
    """The largest relative difference of outputs, states and gradients."""
    worst = max(difference(a[0], b[0]), difference(a[1], b[1]))
    for out, state, _ in (a, b):
        (out.sin().sum() + state.cos().sum()).backward()
    return max([worst] + [difference(a[2][name].grad, x.grad) for name, x in b[2].items()])


CASES = {
    "linear_attn, naive_recurrent_linear_attn": ("linear_attn", "naive_recurrent_linear_attn", "qkv", {}, {"log_decay": False}),
    "simple_gla, naive_recurrent_simple_gla": ("simple_gla", "naive_recurrent_simple_gla", "qkvg", {}, {}),
    "gla, naive_recurrent_gla": ("gla", "naive_recurrent_gla", "qkvg", {"rows": True}, {}),
    "delta_rule, delta_rule_recurrence": ("delta_rule", "delta_rule_recurrence", "qkvb", {}, {"rule": "delta", "log_decay": False}),
    "gated_delta_rule, naive_recurrent_gated_delta_rule": (
        "gated_delta_rule", "naive_recurrent_gated_delta_rule", "qkvgb", {}, {"rule": "delta"}),
    "kda, naive_recurrent_kda": ("kda", "naive_recurrent_kda", "qkvgb", {"rows": True}, {"rule": "delta"}),
    "kda with 6 heads of values on 3": ("kda", "naive_recurrent_kda", "qkvgb", {"rows": True, "values": 6}, {"rule": "delta"}),
}  # fmt: skip


def microseconds(call, tokens):
    call()
    best = 1e9
    for _ in range(3):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return 1e6 * best / tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--time", action="store_true", help="also the time a token and head, T = 1,024, F = E = 128, forward")
    arguments = parser.parse_args()
    bad = 0
    for name, (where, function, letters, problem, options) in CASES.items():
        call = reference(arguments.folder, where, function)
        names = ["beta" if letter == "b" else letter for letter in letters]
        transposed = where == "delta_rule"
        worst = max(
            compare(ours(Problem(**problem), form=form, **options), theirs(Problem(**problem), call, names, transposed))
            for form in ("recurrent", "chunked", "quadratic")
        )
        bad += not worst < 1e-5
        line = f"{name}: outputs, states and gradients within {worst:.1g}"
        if arguments.time:
            p = Problem(**{**problem, "heads": 2, "values": 2}, tokens=1024, size=128, value_size=128)
            with torch.no_grad():
                mine = microseconds(lambda p=p, o=options: ours(p, **o), 2 * 2 * 1024)
                other = microseconds(lambda p=p: theirs(p, call, names, transposed), 2 * 2 * 1024)
            line += f"; {mine:.2f} us a token and head, theirs {other:.2f}"
        print(line, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
