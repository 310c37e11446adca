"""Arguments that were once ignored, misread or lost on the way: honoured or refused, copied and shown."""

import copy
import pickle

import numpy as np
import pytest

import heed


def x(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def test_per_head_takes_texts_and_refuses_the_rest():
    pattern = heed.patterns.per_head(["causal", None])
    assert str(pattern) == "per_head(causal, everything)"
    with pytest.raises(heed.Error, match=r"\[per_head\] pattern_of_head: expected a heed.Pattern or its text, got 3"):
        heed.patterns.per_head([3])


@pytest.mark.parametrize("option", ["bias", "allow", "dropout_keep"])
def test_tables_of_packed_sequences_have_the_longest_ones_size(option):
    q, cu = x(1, 2, 7, 4), [0, 3, 7]
    dtype = "float32" if option == "bias" else bool
    more = {"dropout": 0.5} if option == "dropout_keep" else {}
    heed.attend(q, q, q, cu_seqlens=cu, **{option: np.ones((2, 1, 4, 4), dtype)}, **more)
    for shape in ((2, 1, 5, 4), (2, 1, 4, 5), (2, 1, 7, 7)):
        with pytest.raises(heed.Error, match=r"expected each axis of \[2, 2, 4, 4\] or 1"):
            heed.attend(q, q, q, cu_seqlens=cu, **{option: np.ones(shape, dtype)}, **more)


@pytest.mark.parametrize("option", ["bias", "allow"])
def test_tables_of_cached_calls_have_the_longest_ones_size(option):
    dtype = "float32" if option == "bias" else bool

    def caches():
        pool = heed.CachePool(heed.CacheConfig(head_size=4, value_size=4, page_size=2, pages=32))
        made = [pool.create(), pool.create()]
        heed.cache_append(made, x(1, 1, 9, 4), x(1, 1, 9, 4), tokens=[6, 3])
        return made

    one = x(1, 1, 2, 4)
    for gap in (False, True):
        for shape in ((2, 1, 1, 8), (2, 1, 2, 6), (1, 1, 1, 9)):
            made = caches()
            if gap:
                made[1].drop(1, 2)
            with pytest.raises(heed.Error, match="or 1, got"):
                heed.cached_attend(made, one, one, one, tokens=[1, 1], **{option: np.ones(shape, dtype)})
        made = caches()
        if gap:
            made[1].drop(1, 2)  # read as a copy, and so apart from the other, which is longer
        table = np.zeros((2, 1, 1, 7), dtype)
        table[..., :2] = 1
        apart = [
            heed.cached_attend(
                cache.fork(), one[:, :, n : n + 1], one[:, :, n : n + 1], one[:, :, n : n + 1],
                **{option: table[n : n + 1, ..., : len(cache) + 1]},
            )
            for n, cache in enumerate(made)
        ]
        together = heed.cached_attend(made, one, one, one, tokens=[1, 1], **{option: table})
        np.testing.assert_allclose(together, np.concatenate(apart, 2), atol=1e-6)


def test_an_infini_memory_that_is_given_is_not_empty():
    q, gates = x(1, 1, 4, 2), np.zeros(1, "float32")
    first = heed.InfiniMemory()
    heed.infini_attend(q, q, q, gates, first, segment=4)
    assert first.segments == 1
    expected = heed.infini_attend(q, q, q, gates, first.clone(), segment=4)
    given = heed.infini_attend(q, q, q, gates, heed.InfiniMemory(first.m, first.z), segment=4)
    np.testing.assert_array_equal(given, expected)
    assert heed.InfiniMemory().segments == 0
    assert heed.InfiniMemory(first.m, first.z).segments == 1
    assert heed.InfiniMemory(first.m, first.z, segments=5).segments == 5


def test_infini_attention_is_causal():
    q, gates = x(1, 1, 4, 2), np.zeros(1, "float32")
    heed.infini_attend(q, q, q, gates, heed.InfiniMemory(), causal=True)
    with pytest.raises(heed.Error, match=r"\[infini_attend\] causal: expected True"):
        heed.infini_attend(q, q, q, gates, heed.InfiniMemory(), causal=False)
    with pytest.raises(heed.Error, match=r"\[infini_attend_backward\] causal: expected True"):
        heed.infini_attend_backward(q, q, q, gates, q, heed.InfiniMemory(), causal=False)
    pool = heed.CachePool(heed.CacheConfig(kind="infini", head_size=2, value_size=2, segment=2, pages=1))
    with pytest.raises(heed.Error, match=r"\[cached_infini_attend\] causal: expected True"):
        heed.cached_infini_attend(pool.create(), q, q, q, gates, causal=False)


def test_first_beside_positions_is_refused():
    rows, table = x(1, 1, 3, 4), heed.rope_table(heed.Rope(4))
    for call in (
        lambda **options: heed.rope(rows, table, **options),
        lambda **options: heed.rope_backward(rows, table, **options),
        lambda **options: heed.rerotate(rows, table, table, **options),
        lambda **options: heed.sinusoids(3, 4, **options),
    ):
        np.testing.assert_array_equal(call(first=5), call(positions=[5, 6, 7], first=0))
        with pytest.raises(heed.Error, match="first: expected 0 beside positions, got 5"):
            call(positions=[0, 1, 2], first=5)


def test_cache_append_names_its_own_argument():
    pool = heed.CachePool(heed.CacheConfig(head_size=4, value_size=4, pages=8))
    rows = x(1, 1, 3, 4)
    for wrong in (np.zeros((1, 2), int), np.zeros((1, 3), "float32"), np.full((1, 3), 2**60)):
        with pytest.raises(heed.Error, match=r"\[cache_append\] positions"):
            heed.cache_append(pool.create(), rows, rows, positions=wrong)
        with pytest.raises(heed.Error, match=r"\[cached_attend\] query_positions"):
            heed.cached_attend(pool.create(), rows, rows, rows, query_positions=wrong)


VALUES = [
    heed.Pattern(),
    heed.Pattern("causal & (window(256, 0) | global(0))"),
    heed.patterns.blocks(64, 32, [(n * 7 % 11, n * 5 % 13) for n in range(40)]),
    heed.patterns.document([[0, 0, 3], [1]]),
    heed.patterns.padding(list(range(20))),
    heed.patterns.per_head([heed.patterns.blocks(2, 2, [(0, 0)]), None]),
    heed.RopeLinear(2.0),
    heed.RopeNtk(2.5),
    heed.RopeDynamicNtk(2.0, 128),
    heed.RopeYarn(4.0, 64, beta_slow=2.0, truncate=False, attention_factor=1.25),
    heed.RopeLlama3(8.0, 100),
    heed.RopeLongRope(16, [1.0, 2.0], [3.0, 4.0], attention_factor=1.5),
    heed.RopeProportional(0.25),
    heed.Rope(8, 5e5, "interleaved", heed.RopeYarn(4.0, 64)),
    heed.RopeTable([1.0, 0.1], 1.5, "interleaved"),
    heed.rope_from_config('{"model_type": "llama", "head_dim": 64, "rope_theta": 500000.0}'),
    heed.CacheConfig(kind="latent", head_size=5, value_size=4, pages=3, rope=heed.Rope(2), storage="bf16"),
    heed.CacheConfig(),
    heed.LatentAttention(query_rank=1),
    heed.model_preset("llama-3-8b"),
    heed.parameters(heed.model_preset("llama-3-8b")),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_copied_pickled_and_shown(value):
    for twin in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert type(twin) is type(value)
        assert repr(twin) == repr(value)
    # What is shown is how to write it.
    assert repr(eval(repr(value), {"heed": heed, "inf": np.inf, "nan": np.nan})) == repr(value)


def test_a_copy_is_apart():
    config = heed.CacheConfig(pages=3)
    twin = copy.deepcopy(config)
    twin.pages = 5
    assert (config.pages, twin.pages) == (3, 5)


def test_caches_say_what_they_are():
    pool = heed.CachePool(heed.CacheConfig(layers=2, kv_heads=3, head_size=4, value_size=5, pages=8, storage="i8"))
    cache = pool.create()
    contents = "2 layers of kind 'attention' in 'i8', G 3, D 4, E 5>"
    assert repr(pool) == "<heed.CachePool: 8 of 8 pages free, of 16 tokens; " + contents
    for layer in range(2):
        heed.cache_append(cache, x(1, 3, 20, 4), x(1, 3, 20, 5), layer=layer)
    twin = cache.fork()
    assert repr(cache).startswith("<heed.Cache: 20 tokens in 2 pages (2 shared); 2 layers of kind 'attention'")
    twin.free()
    assert repr(twin) == "<heed.Cache: freed>"
