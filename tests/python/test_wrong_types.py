"""Every public function, given something of a wrong type in place of each of its arguments, says so by TypeError or
ValueError (or takes it): never by an exception of C++, never by a crash."""

import os

import numpy as np
import pytest

import heed


def x(*shape):
    return np.ones(shape, "float32")


def config(**fields):
    return heed.CacheConfig(head_size=4, value_size=4, pages=8, **fields)


def cache(**fields):
    return heed.CachePool(config(**fields)).create()


def filled():
    made = cache()
    heed.cache_append(made, x(1, 1, 3, 4), x(1, 1, 3, 4))
    return made


ATTENTION = {
    "causal": True,
    "window": (-1, -1),
    "scale": 1.0,
    "softcap": 0.0,
    "align": "bottom_right",
    "allow": np.ones((1, 1, 1, 1), bool),
    "bias": x(1, 1, 1, 1),
    "pattern": "causal",
    "alibi_slopes": x(2),
    "sinks": x(2),
    "dropout": 0.1,
    "seed": 1,
    "dropout_offset": 0,
    "dropout_keep": None,
    "query_lengths": None,
    "key_lengths": [3],
    "lengths": None,
    "cu_seqlens": None,
    "cu_seqlens_q": None,
    "cu_seqlens_k": None,
    "query_positions": None,
    "key_positions": None,
    "kernel": "reference",
    "context": None,
}
Q = x(1, 2, 3, 4)
S = x(1, 2, 3)
STATE = (np.zeros((1, 2, 4, 4), "float32"), np.zeros((1, 2, 4), "float32"))
LINEAR = {"feature": "relu", "causal": True, "normalise": True, "epsilon": 1e-6, "scale": 1.0, "decay": x(2)}
DELTA = {"feature": "identity", "normalise": False, "rule": "delta", "log_decay": -x(1, 2, 3), "beta": x(1, 2, 3)}
INFINI = {"segment": 2, "update": "linear", "first_segment": "gated", "epsilon": 1e-6, "memory_q": None, "kernel": ""}
BATCH = {"tokens": [3], "layer": 0, "share": "never"}
CACHED = {name: value for name, value in ATTENTION.items() if name not in ("key_lengths", "align")}
CONFIG = '{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}'
GPT2 = '{"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9, "n_positions": 5}'
MODEL = heed.model_preset(heed.model_presets()[0])


def calls(folder):
    """name: (function that makes the arguments by position, the keywords). Made anew for every call."""
    table = lambda: heed.rope_table(heed.Rope(4))  # noqa: E731
    path = os.path.join(folder, "some.safetensors")
    heed.write_safetensors(path, {"x": x(3)})
    filled().save(os.path.join(folder, "cache.safetensors"))
    latent = lambda: cache(kind="latent")  # noqa: E731
    rope_options = {"positions": [0, 1, 2], "first": 0, "context": None}
    return {
        "attend": (lambda: (Q, Q, Q), {**ATTENTION, "lse": True, "out": None}),
        "attend_backward": (lambda: (Q, Q, Q, Q, S, Q), {**ATTENTION, "dlse": S, "dq": None, "dbias": True}),
        "attention_map": (lambda: (Q, Q), {**ATTENTION, "size": (2, 2)}),
        "attention_statistics": (lambda: (Q, Q), {**ATTENTION, "mass_window": (0, 1), "argmax": True}),
        "attention_weights": (lambda: (Q, Q), ATTENTION),
        "attention_scores": (lambda: (Q, Q), {**ATTENTION, "stage": "biased", "rows": [0, 1]}),
        "score_parts": (lambda: (Q, Q), {**{n: v for n, v in ATTENTION.items() if n != "context"}, "row": 1, "column": 0, "head": 1, "batch": 0}),
        "rotate": (lambda: (Q, x(3, 2), x(3, 2)), {"pairing": "halves", "positions": [0, 1, 2], "out": None}),
        "rotate_backward": (lambda: (Q, x(3, 2), x(3, 2)), {"pairing": "interleaved", "positions": [0, 1, 2]}),
        "rotary_tables": (
            lambda: ([table()], [[0, 1, 2]]),
            {"xpos": "queries", "gamma": 0.4, "scale_base": 512.0, "centre": 0.0, "context": None},
        ),
        "explain": (lambda: (1, 2, 3, 3), {"kv_heads": 1, "head_size": 4, "dtype": "f32", "causal": True}),
        "attention_kernels": (lambda: (), {}),
        "walkthrough": (lambda: (x(1, 3, 4),), {"wq": None, "wk": x(4, 4), "heads": 2, "kv_heads": 2, "batch_entry": 0, "causal": True}),
        "rope": (lambda: (Q, table()), rope_options),
        "rope_backward": (lambda: (Q, table()), rope_options),
        "rerotate": (lambda: (Q, table(), table()), rope_options),
        "rope_table": (lambda: (heed.Rope(4), 8), {}),
        "rope_from_config": (lambda: (CONFIG,), {}),
        "sinusoids": (lambda: (3, 4), {"layout": "halves", "reach_base": True, "base": 100.0, "positions": [1, 2, 3]}),
        "learned_positions": (lambda: (x(5, 4), [0, 1]), {"offset": 1, "add": False, "out": None}),
        "learned_positions_backward": (lambda: (x(1, 2, 4), [0, 1], 5), {"offset": 1}),
        "relative_bucket": (lambda: (3,), {"buckets": 32, "max_distance": 128, "bidirectional": True}),
        "relative_bias": (lambda: (x(32, 2), 3, 3), {"batch": 1, "align": "top_left", "query_positions": np.arange(3)[None]}),
        "relative_bias_backward": (lambda: (x(1, 2, 3, 3),), {"buckets": 32, "align": "top_left"}),
        "alibi_slopes": (lambda: (4, 8.0), {}),
        "linear_attend": (lambda: (Q, Q, Q), {**LINEAR, "initial": STATE, "final": True, "form": "chunked", "chunk": 2}),
        "linear_attend_backward": (
            lambda: (Q, Q, Q, Q),
            {**DELTA, "causal": True, "scale": 1.0, "initial": (STATE[0], None), "dbeta": True, "dlog_decay": True},
        ),
        "infini_attend": (lambda: (Q, Q, Q, x(2), heed.InfiniMemory()), {**INFINI, "causal": True, "sinks": x(2)}),
        "infini_attend_backward": (
            lambda: (Q, Q, Q, x(2), Q, heed.InfiniMemory()),
            {**INFINI, "unroll": 0, "dgates": True, "after_dm": None},
        ),
        "mla_attend": (lambda: (Q, x(1, 3, 4), None, x(2, 4, 4), x(2, 4, 4)), {"causal": True, "lse": True}),
        "mla_attend_backward": (
            lambda: (Q, x(1, 3, 4), None, x(2, 4, 4), x(2, 4, 4), Q, S, Q),
            {"causal": True},
        ),
        "cached_attend": (lambda: (cache(), *(x(1, 1, 3, 4),) * 3), {**CACHED, **BATCH, "alibi_slopes": x(1), "sinks": x(1)}),
        "cache_append": (lambda: (cache(), x(1, 1, 3, 4), x(1, 1, 3, 4)), {**BATCH, "positions": np.arange(3)[None]}),
        "cached_mla_attend": (lambda: (latent(), Q, x(1, 1, 3, 4), x(2, 4, 4), x(2, 4, 4)), {**BATCH, "causal": True}),
        "cached_linear_attend": (lambda: (cache(kind="linear"), *(x(1, 1, 3, 4),) * 3), {**BATCH, "feature": "relu"}),
        "cached_infini_attend": (
            lambda: (cache(kind="infini", segment=2), *(x(1, 1, 3, 4),) * 3, x(1)),
            {**BATCH, "segment": 2, "update": "delta"},
        ),
        "contiguous_cache": (lambda: (config(), 10, 2), {}),
        "cache_bytes_per_token": (lambda: (config(),), {}),
        "cache_bytes_per_page": (lambda: (config(),), {}),
        "merge": (lambda: ([(Q, S), (Q, S)],), {}),
        "merge_backward": (lambda: ([(Q, S), (Q, S)], Q), {"dlse": S}),
        "matmul": (lambda: (x(2, 3), x(3, 4)), {"alpha": 1.0, "beta": 0.0, "out": None}),
        "dropout_threshold": (lambda: (0.5,), {}),
        "dropout_word": (lambda: (0, 0, 0, 0, 0), {}),
        "linear_attend_step": (lambda: (x(1, 2, 4), x(1, 2, 4), x(1, 2, 4), STATE), {"feature": "relu", "decay": x(2)}),
        "mla_attend_absorbed": (lambda: (Q, x(1, 3, 4), x(2, 4, 4), x(2, 4, 4)), {"causal": True, "lse": True}),
        "mla_scale": (lambda: (16, 1.0), {}),
        "pool_heads": (lambda: (x(8, 6), 4, 2), {}),
        "random_example": (lambda: (1, 3, 8, 2, 2, 0), {}),
        "philox4x32": (lambda: ((0, 1, 2, 3), 1), {}),
        "SafetensorsFile": (lambda: (path,), {}),
        "write_safetensors": (lambda: (path, {"x": x(3)}, {"a": "b"}), {}),
        "model_presets": (lambda: (), {}),
        "model_preset": (lambda: (heed.model_presets()[0],), {}),
        "model_from_config": (lambda: (GPT2,), {}),
        "attention_kind": (lambda: (MODEL,), {}),
        "with_attention": (lambda: (MODEL, "mqa", 0, None), {}),
        "parameters": (lambda: (MODEL,), {}),
        "flops_per_token": (lambda: (MODEL, 1), {}),
        "training_flops_per_token": (lambda: (MODEL, 8), {}),
        "attention_flops_per_key": (lambda: (MODEL, "expanded"), {}),
        "kv_bytes_per_token": (lambda: (MODEL, 2), {}),
        "cross_kv_bytes_per_token": (lambda: (MODEL, 2), {}),
        "kv_cache_bytes": (lambda: (MODEL, 2, 8, 1), {}),
        "weight_bytes": (lambda: (MODEL, 2), {}),
        "attention_cost": (lambda: (MODEL, 1, 2), {}),
        "Context": (lambda: (1,), {}),
        "Pattern": (lambda: ("causal",), {}),
        "Rope": (lambda: (4, 100.0, "halves", heed.RopeLinear(2.0)), {}),
        "RopeTable": (lambda: ([1.0], 1.0, "halves"), {}),
        "RopeLinear": (lambda: (2.0,), {}),
        "RopeNtk": (lambda: (2.0,), {}),
        "RopeDynamicNtk": (lambda: (2.0, 8), {}),
        "RopeYarn": (lambda: (2.0, 8, 32.0, 1.0, True, None, 0.0, 0.0), {}),
        "RopeLlama3": (lambda: (2.0, 8, 1.0, 4.0), {}),
        "RopeLongRope": (lambda: (8, [1.0], [2.0], 1.0, None), {}),
        "RopeProportional": (lambda: (0.5, 1.0), {}),
        "LayerRope": (lambda: (), {"layer_type": "", "rope": heed.Rope(4)}),
        "RopeConfig": (lambda: (), {"kinds": [], "layer_types": ["a"], "head_size": 4, "max_positions": 8}),
        "CacheConfig": (
            lambda: (),
            {"kind": "attention", "layers": 1, "storage": "i8", "rope": heed.Rope(4), "positions": "slots", "sinks": 1},
        ),
        "CachePool": (lambda: (config(),), {}),
        "InfiniMemory": (lambda: (x(1, 1, 4, 4), x(1, 1, 4), 1), {}),
        "FeatureFunction": (lambda: (lambda row: row, lambda row, d: d), {"size": 0}),
        "LatentAttention": (lambda: (), {"query_rank": 1, "kv_rank": 2}),
        "Experts": (lambda: (), {"routed": 1, "correction_bias": True}),
        "ModelShape": (lambda: (), {"name": "a", "kind": "decoder", "layers": 1, "latent": heed.LatentAttention()}),
        "Flops": (lambda: (), {"projections": 1}),
        "ParameterCount": (lambda: (), {"embedding": 1}),
        "AttentionCost": (lambda: (), {"input_numbers": 1}),
        "Pattern.allows": (lambda: (heed.Pattern("causal"), 0, 0, 1, 1), {}),
        "Pattern.row": (lambda: (heed.Pattern("causal"), 1, 2), {"first_key": 0, "batch": 0, "head": 0}),
        "Pattern.cover": (lambda: (heed.Pattern("causal"), (0, 1), (0, 1)), {"batch": 0, "head": 0}),
        "Pattern.window": (lambda: (1, 1), {}),
        "Pattern.padding": (lambda: ([1],), {}),
        "Pattern.prefix": (lambda: ([1],), {}),
        "Pattern.document": (lambda: ([[0, 0, 1]],), {}),
        "Pattern.strided": (lambda: (2,), {}),
        "Pattern.fixed": (lambda: (2, 1), {}),
        "Pattern.dilated": (lambda: (1, 0, 2), {}),
        "Pattern.global_tokens": (lambda: ([1],), {}),
        "Pattern.random_blocks": (lambda: (2, 4, 1, 0), {}),
        "Pattern.blocks": (lambda: (2, 2, [(0, 1)]), {}),
        "Pattern.per_head": (lambda: (["causal", None],), {}),
        "Pattern.parse": (lambda: ("causal",), {}),
        "Pattern.__and__": (lambda: (heed.Pattern("causal"), heed.Pattern("causal")), {}),
        "Pattern.__setstate__": (lambda: (heed.Pattern.__new__(heed.Pattern), "causal"), {}),
        "InfiniMemory.__setstate__": (
            lambda: (heed.InfiniMemory.__new__(heed.InfiniMemory), heed.InfiniMemory().__getstate__()),
            {},
        ),
        "CachePool.restore": (
            lambda: (heed.CachePool(config()), os.path.join(folder, "cache.safetensors")),
            {},
        ),
        "Cache.layer_length": (lambda: (filled(), 0), {}),
        "Cache.truncate": (lambda: (filled(), 1), {}),
        "Cache.drop": (lambda: (filled(), 0, 1), {}),
        "Cache.keep_window": (lambda: (filled(), 1, 1), {}),
        "Cache.save": (lambda: (filled(), os.path.join(folder, "again.safetensors")), {}),
        "Cache.keys": (lambda: (filled(), 0, 0, 2), {}),
        "Cache.values": (lambda: (filled(), 0, 0, 2), {}),
        "SafetensorsFile.__getitem__": (lambda: (heed.SafetensorsFile(path), "x"), {}),
        "SafetensorsFile.__contains__": (lambda: (heed.SafetensorsFile(path), "x"), {}),
        "SafetensorsFile.view": (lambda: (heed.SafetensorsFile(path), "x"), {}),
        "SafetensorsFile.shape": (lambda: (heed.SafetensorsFile(path), "x"), {}),
        "SafetensorsFile.dtype": (lambda: (heed.SafetensorsFile(path), "x"), {}),
    }


class Odd:
    """Has every protocol, none of them right."""

    __array_struct__ = 3
    __array_interface__ = 3
    __dlpack__ = 3
    __dlpack_device__ = 3
    __index__ = None
    __float__ = None

    def __len__(self):
        return 3


def wrong_values():
    return [
        None,
        object(),
        Odd(),
        Odd,
        "text",
        "\udcff",
        b"bytes",
        3.5,
        float("nan"),
        -3,
        2**70,
        True,
        [],
        ["causal"],
        [3, None],
        [[1], [2, 3]],
        (1, 2, 3),
        {},
        {"a": 1},
        {1: 2},
        set(),
        lambda *_: None,
        np.array(["a", "b"]),
        np.array([1 + 2j]),
        np.array([object()], dtype=object),
        np.zeros((), "float32"),
        np.zeros((0, 4), "int8"),
        np.zeros((1,) * 9),
        np.datetime64("2026-01-01"),
        heed.Pattern("causal"),
        heed.Rope(4),
        np,
    ]


def resolve(name):
    value = heed
    for part in name.split("."):
        value = getattr(value, part)
    return value


def check_right(table):
    for name, (arguments, keywords) in table.items():
        resolve(name)(*arguments(), **keywords)


def surprises_of(table):
    """What else than TypeError and ValueError came of something wrong in each place of each call of the table."""
    surprises = []

    def attempt(name, what, arguments, keywords):
        try:
            resolve(name)(*arguments, **keywords)
        except (TypeError, ValueError):
            pass
        except heed.FileError:  # a text was taken for the name of a file that is not there
            pass
        except Exception as error:  # noqa: BLE001
            surprises.append(f"{name}({what}): {type(error).__name__}: {error}")

    for name, (arguments, keywords) in table.items():
        for n in range(len(arguments())):
            for wrong in wrong_values():
                given = list(arguments())
                given[n] = wrong
                attempt(name, f"#{n}={wrong!r}", given, keywords)
        for keyword in keywords:
            for wrong in wrong_values():
                attempt(name, f"{keyword}={wrong!r}", arguments(), {**keywords, keyword: wrong})
        attempt(name, "too many", (*arguments(), *range(20)), keywords)
        attempt(name, "a name that nobody knows", arguments(), {**keywords, "no_such_name": 1})
    return surprises


def test_every_call_is_right(tmp_path):
    check_right(calls(str(tmp_path)))


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning", "ignore:nanobind:RuntimeWarning")
def test_wrong_types(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a text is a path to some
    assert surprises_of(calls(str(tmp_path))) == []
