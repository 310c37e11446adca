"""Caches: what they hold gives the results of attention over everything at once."""

import threading
import time

import numpy as np
import pytest

import heed
import plain


def rows(rng, heads, tokens, size, dtype="float32"):
    return rng.standard_normal((1, heads, tokens, size)).astype(dtype)


def make_pool(**fields):
    return heed.CachePool(
        heed.CacheConfig(**{**dict(kv_heads=2, head_size=8, value_size=6, page_size=4, pages=32), **fields})
    )


def test_prefill_and_decode_in_any_pieces(rng):
    q, k, v = rows(rng, 4, 11, 8), rows(rng, 2, 11, 8), rows(rng, 2, 11, 6)
    expected = plain.attention(q, k, v, causal=True)
    for pieces in ([11], [1] * 11, [3, 5, 2, 1]):
        cache, begin, out = make_pool().create(), 0, []
        for count in pieces:
            part = [x[:, :, begin : begin + count] for x in (q, k, v)]
            result, lse = heed.cached_attend(cache, *part, causal=True, lse=True)
            assert np.allclose(lse, expected["lse"][:, :, begin : begin + count], atol=1e-5)
            out.append(result)
            begin += count
        assert np.allclose(np.concatenate(out, 2), expected["out"], atol=1e-5)
        assert len(cache) == cache.length == 11 and cache.positions == list(range(11)) and cache.next_position == 11
        assert np.array_equal(cache.keys(), k) and np.array_equal(cache.values(0, 2, 5), v[:, :, 2:5])


@pytest.mark.parametrize("storage, bound", [("f32", 1e-5), ("bf16", 3e-2), ("f16", 4e-3), ("i8", 3e-2), ("i4", 0.4)])
def test_storages(rng, storage, bound):
    q, k, v = rows(rng, 4, 9, 8), rows(rng, 2, 9, 8), rows(rng, 2, 9, 6)
    pool = make_pool(storage=storage)
    assert pool.config.storage == storage and heed.cache_bytes_per_token(pool.config) > 0
    out = heed.cached_attend(pool.create(), q, k, v, causal=True)
    assert np.abs(out - plain.attention(q, k, v, causal=True)["out"]).max() < bound


def test_batches_forks_and_pages(rng):
    pool = make_pool(layers=2)
    a, b = pool.create(), pool.create()
    q, k, v = rows(rng, 4, 8, 8), rows(rng, 2, 8, 8), rows(rng, 2, 8, 6)
    for layer in range(2):
        out = heed.cached_attend([a, b], q, k, v, tokens=[5, 3], layer=layer, causal=True)
    for part in (slice(0, 5), slice(5, 8)):
        alone = plain.attention(q[:, :, part], k[:, :, part], v[:, :, part], causal=True)["out"]
        assert np.allclose(out[:, :, part], alone, atol=1e-5)
    assert (a.length, b.length, a.layer_length(1)) == (5, 3, 5) and pool.free_pages == 32 - 2 - 1
    c = a.fork()
    assert c.pages == 2 and c.shared_pages == 2 and pool.used_bytes < pool.bytes
    heed.cache_append(c, k[:, :, :1], v[:, :, :1], layer=0)
    heed.cache_append(c, k[:, :, :1], v[:, :, :1], layer=1)
    assert (a.length, c.length, c.shared_pages) == (5, 6, 1)
    a.truncate(2)
    c.drop(1, 3)
    assert a.length == 2 and c.length == 4 and c.positions == [0, 3, 4, 5]
    c.keep_window(1, 2)
    assert c.positions == [0, 4, 5]
    b.free()
    assert not b
    with pytest.raises(ValueError):
        b.free()
    del a, c
    assert pool.free_pages == 32


def test_a_full_pool_says_so(rng):
    pool = make_pool(pages=2)
    cache = pool.create()
    k, v = rows(rng, 2, 9, 8), rows(rng, 2, 9, 6)
    with pytest.raises(heed.CacheFull) as caught:
        heed.cache_append(cache, k, v)
    assert (caught.value.needed, caught.value.free) == (3, 2) and isinstance(caught.value, heed.Error)
    assert cache.length == 0 and pool.free_pages == 2
    heed.cache_append(cache, k[:, :, :8], v[:, :, :8])


def test_save_and_restore(rng, tmp_path):
    pool = make_pool(storage="i8", rope=heed.Rope(8))
    cache = pool.create()
    q, k, v = rows(rng, 4, 6, 8), rows(rng, 2, 6, 8), rows(rng, 2, 6, 6)
    heed.cached_attend(cache, *(x[:, :, :5] for x in (q, k, v)), causal=True)
    cache.save(tmp_path / "cache.safetensors")
    again = pool.restore(tmp_path / "cache.safetensors")
    last = [x[:, :, 5:] for x in (q, k, v)]
    assert np.array_equal(heed.cached_attend(cache, *last, causal=True), heed.cached_attend(again, *last, causal=True))
    (tmp_path / "cache.safetensors").write_bytes(b"no")
    with pytest.raises(OSError):
        pool.restore(tmp_path / "cache.safetensors")


def test_other_kinds(rng):
    q, k, v = rows(rng, 2, 7, 4), rows(rng, 2, 7, 4), rows(rng, 2, 7, 4)
    sizes = dict(kv_heads=2, head_size=4, value_size=4, pages=2)
    linear = heed.CachePool(heed.CacheConfig(kind="linear", **sizes)).create()
    parts = [heed.cached_linear_attend(linear, *(x[:, :, a:b] for x in (q, k, v))) for a, b in ((0, 3), (3, 7))]
    assert np.allclose(np.concatenate(parts, 2), heed.linear_attend(q, k, v), atol=1e-5)

    infini = heed.CachePool(heed.CacheConfig(kind="infini", segment=3, **sizes)).create()
    gates = np.array([0.3, -0.2], np.float32)
    parts = [heed.cached_infini_attend(infini, *(x[:, :, a:b] for x in (q, k, v)), gates) for a, b in ((0, 4), (4, 7))]
    expected = heed.infini_attend(q, k, v, gates, heed.InfiniMemory(), segment=3)
    assert np.allclose(np.concatenate(parts, 2), expected, atol=1e-5)

    latent = heed.CachePool(heed.CacheConfig(kind="latent", head_size=6, value_size=4, pages=4)).create()
    up_key, up_value = rng.standard_normal((2, 3, 4)).astype("f4"), rng.standard_normal((2, 5, 4)).astype("f4")
    queries, cached = rows(rng, 2, 7, 5), rows(rng, 1, 7, 6)
    got = heed.cached_mla_attend(latent, queries, cached, up_key, up_value, causal=True)
    expected = heed.mla_attend_absorbed(queries, cached[:, 0], up_key, up_value, causal=True)
    assert np.allclose(got, expected, atol=1e-5)


def test_threads_share_a_cache_without_harm(rng):
    """Who comes first is not said; that nothing breaks is."""
    pool = make_pool(pages=400, page_size=2)
    cache = pool.create()
    k, v, q = rows(rng, 2, 1, 8), rows(rng, 2, 1, 6), rows(rng, 4, 1, 8)

    def work():
        for _ in range(50):
            heed.cached_attend(cache, q, k, v, causal=True)
            assert cache.length > 0 and len(cache.fork().positions) > 0

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.length == 200 and np.array_equal(cache.keys(), np.repeat(k, 200, 2))


def test_a_gap_is_never_read():
    """Memory that was freed full of NaN comes back as pages; rows that a gap left out must not show it."""
    rng = np.random.default_rng(0)

    def x(m):
        return rng.standard_normal((1, 1, m, 128)).astype("f")

    for storage in ("f32", "bf16", "f16", "i8", "i4"):
        for _ in range(20):
            junk = [np.full(s, np.nan, "f") for s in (30000, 50000, 100000, 130000, 200000, 300000, 500000, 1000000) * 3]
            del junk
            config = heed.CacheConfig(
                head_size=128, value_size=128, page_size=64, pages=int(rng.integers(4, 40)), storage=storage
            )
            c = heed.CachePool(config).create()
            heed.cache_append(c, x(30), x(30))
            c.keep_window(4, 20)
            assert not np.isnan(heed.cached_attend(c, x(1), causal=True)).any(), storage


def test_kept_keys_of_sinks_move_with_their_tokens():
    rng = np.random.default_rng(0)
    k, v, q = (rng.standard_normal((1, 1, m, 4)).astype("f") for m in (8, 8, 1))

    def run(sinks):
        config = heed.CacheConfig(
            head_size=4, value_size=4, pages=8, positions="slots", rope=heed.Rope(4), sinks=sinks
        )
        c = heed.CachePool(config).create()
        heed.cache_append(c, k, v)
        c.drop(0, 1)
        c.drop(3, 4)
        return heed.cached_attend(c, q)

    for sinks in (1, 2, 3, 8):
        assert abs(run(sinks) - run(0)).max() < 1e-6


def test_pages_of_any_size_agree_to_the_bit_with_gaps(rng):
    k, v, q = rows(rng, 2, 200, 64), rows(rng, 2, 200, 64), rows(rng, 4, 1, 64)

    def run(page_size, storage):
        config = heed.CacheConfig(
            kv_heads=2, head_size=64, value_size=64, pages=220, page_size=page_size, storage=storage
        )
        c = heed.CachePool(config).create()
        heed.cache_append(c, k, v)
        for n in range(1, 100, 13):
            c.drop(n, n + 1)
        c.drop(120, 150)
        return heed.cached_attend(c, q, causal=True)

    for storage in ("f32", "bf16", "f16", "i8", "i4"):
        expected = run(16, storage)
        assert all(np.array_equal(run(size, storage), expected) for size in (1, 5, 64, 200))


@pytest.mark.parametrize("page_size", [16, 256])
def test_many_small_gaps_do_not_make_decoding_slow(rng, page_size):
    """They made it 7 to 160 times slower; 1.1 times is what was measured since."""
    k, q = rows(rng, 2, 1024, 64), rows(rng, 8, 1, 64)
    one_thread = heed.Context(threads=1)

    def fill(tokens):
        config = dict(head_size=64, value_size=64, page_size=page_size, pages=2100 // page_size)
        cache = make_pool(**config).create()
        heed.cache_append(cache, k[:, :, :tokens], k[:, :, :tokens])
        return cache

    def seconds(cache):
        times = []
        for _ in range(300):
            begin = time.perf_counter()
            heed.cached_attend(cache, q, context=one_thread)
            times.append(time.perf_counter() - begin)
        return min(times)

    untouched, dropped = fill(825), fill(1024)
    for n in range(199):
        dropped.drop(4 * n + 1, 4 * n + 2)
    assert untouched.length == dropped.length == 825
    assert seconds(dropped) < 4 * seconds(untouched)


def test_positions_may_be_anywhere(rng):
    k, v, q = rows(rng, 1, 6, 8), rows(rng, 1, 6, 8), rows(rng, 1, 1, 8)
    left = [0, 1, 3, 4, 5]
    for first in (0, 2**28 - 3, 2**28, 2**30, 2**40, -4, -(2**28), -(2**30)):
        positions = np.arange(first, first + 6)[None]
        cache = make_pool(kv_heads=1, head_size=8, value_size=8).create()
        heed.cache_append(cache, k, v, positions=positions)
        cache.drop(2, 3)
        assert cache.next_position == first + 6
        options = dict(causal=True, window=(3, 0), query_positions=positions[:, -1:])
        expected = heed.attend(q, k[:, :, left], v[:, :, left], key_positions=positions[:, left], **options)
        assert np.allclose(heed.cached_attend(cache, q, **options), expected, atol=1e-6), first


def test_truncating_to_its_own_length_changes_nothing(rng):
    cache = make_pool().create()
    heed.cache_append(cache, rows(rng, 2, 10, 8), rows(rng, 2, 10, 6))
    cache.drop(7, 10)
    cache.truncate(7)
    assert cache.length == 7 and cache.next_position == 10


def test_wrong_calls(rng):
    cache = make_pool().create()
    q, k, v = rows(rng, 4, 1, 8), rows(rng, 2, 1, 8), rows(rng, 2, 1, 6)
    for call, message in [
        (lambda: heed.cached_attend("cache", q, k, v), r"caches: expected a heed.Cache or a list of them"),
        (lambda: heed.cached_attend([cache, cache], q, k, v), r"\[cached_attend\]"),
        (lambda: heed.cached_attend(cache, q, k, v, share="maybe"), r"share: expected one of"),
        (lambda: heed.cached_attend(cache, q, k[..., :4], v), r"\[cached_attend\] k"),
        (lambda: heed.CacheConfig(storage="i2"), r"storage: expected one of"),
        (lambda: make_pool(pages=-1), r"pages"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
