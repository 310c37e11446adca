"""Attention and its gradients in NumPy, float64, written from <heed/attention.h> alone: what heed is compared with."""

import numpy as np


def philox(counter, key):
    """Philox4x32-10; counter is four arrays of uint64 that hold 32 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c0
        p1 = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            p1 & low,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            p0 & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], -1)


def keep_mask(shape, p, seed, offset, first_plane=0):
    b, h, t, s = shape
    plane, i, j = np.meshgrid(np.arange(first_plane, first_plane + b * h), np.arange(t), np.arange(s), indexing="ij")
    words = philox([x.astype(np.uint64) for x in (j // 4, i, plane, np.full_like(j, offset))], seed)
    word = np.take_along_axis(words, (j % 4)[..., None], -1)[..., 0]
    return (word >= int(p * 2**32 + 0.5)).reshape(shape)


def expand(x, shape):
    return None if x is None else np.broadcast_to(np.asarray(x), shape)


def reduce_to(x, shape):
    """Sum over the axes that are 1 in `shape`."""
    axes = tuple(axis for axis, extent in enumerate(shape) if extent == 1 and x.shape[axis] != 1)
    return x.sum(axes, keepdims=True)


def attention(
    q,
    k,
    v,
    *,
    dout=None,
    dlse=None,
    first_plane=0,
    scale=None,
    causal=False,
    align="bottom_right",
    window=(-1, -1),
    allow=None,
    pattern=None,
    bias=None,
    alibi_slopes=None,
    softcap=0.0,
    sinks=None,
    query_lengths=None,
    key_lengths=None,
    query_positions=None,
    key_positions=None,
    dropout=0.0,
    seed=0,
    dropout_offset=0,
    dropout_keep=None,
):
    """A dict with out, lse, weights (before dropout) and, where dout is given, the gradients."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    b, h, t, d = q.shape
    g, s = k.shape[1], k.shape[2]
    full = (b, h, t, s)
    kh, vh = np.repeat(k, h // g, 1), np.repeat(v, h // g, 1)
    scale = d**-0.5 if scale is None else scale

    pq = np.arange(t)[None] + (s - t if align == "bottom_right" else 0)
    pq = pq if query_positions is None else np.asarray(query_positions)
    pk = np.arange(s)[None] if key_positions is None else np.asarray(key_positions)
    pq, pk = (x[None] if x.ndim == 1 else x for x in (pq, pk))
    pi, pj = np.broadcast_to(pq[:, None, :, None], full), np.broadcast_to(pk[:, None, None, :], full)

    seen = np.ones(full, bool)
    if causal:
        seen &= pj <= pi
    if window[0] >= 0:
        seen &= pj >= pi - window[0]
    if window[1] >= 0:
        seen &= pj <= pi + window[1]
    if allow is not None:
        seen &= expand(allow, full) != 0
    if pattern is not None:
        seen &= np.vectorize(lambda bb, hh, i, j: pattern.allows(bb, hh, i, j))(*np.indices(full)[:2], pi, pj).astype(
            bool
        )
    if query_lengths is not None:
        seen &= np.arange(t)[None, None, :, None] < np.asarray(query_lengths)[:, None, None, None]
    if key_lengths is not None:
        seen &= np.arange(s)[None, None, None, :] < np.asarray(key_lengths)[:, None, None, None]

    raw = scale * np.einsum("bhid,bhjd->bhij", q, kh)
    bent = np.tanh(raw / softcap) if softcap else None
    x = softcap * bent if softcap else raw
    distance = np.abs(pi - pj).astype(np.float64)
    if bias is not None:
        x = x + expand(np.asarray(bias, np.float64), full)
    if alibi_slopes is not None:
        slopes = np.asarray(alibi_slopes, np.float64)
        slopes = slopes[None] if slopes.ndim == 1 else slopes
        x = x - slopes[:, :, None, None] * distance
    x = np.where(seen, x, -np.inf)
    live = np.ones((b, h, t), bool)
    if query_lengths is not None:
        live = np.broadcast_to(np.arange(t)[None, None] < np.asarray(query_lengths)[:, None, None], live.shape)

    sink = np.full((1, h, 1), -np.inf) if sinks is None else np.asarray(sinks, np.float64)[None, :, None]
    top = np.maximum(x.max(-1, initial=-np.inf), sink)
    top = np.where(np.isfinite(top), top, 0.0)
    e = np.where(seen, np.exp(x - top[..., None]), 0.0)
    total = e.sum(-1) + np.exp(sink - top)
    with np.errstate(divide="ignore"):
        lse = np.where(live, np.log(total) + top, -np.inf)
    weights = np.where(live[..., None], e / np.where(total == 0, 1.0, total)[..., None], 0.0)

    keep = np.ones(full)
    if dropout:
        mask = (
            expand(dropout_keep, full) != 0
            if dropout_keep is not None
            else keep_mask(full, dropout, seed, dropout_offset, first_plane)
        )
        keep = mask / (1 - dropout)
    dropped = weights * keep
    result = {"out": np.einsum("bhij,bhje->bhie", dropped, vh), "lse": lse, "weights": weights}
    if dout is None:
        return result

    dout = np.asarray(dout, np.float64)
    dlse = np.zeros((b, h, t)) if dlse is None else np.asarray(dlse, np.float64)
    dlse = np.where(np.isfinite(lse), dlse, 0.0)
    dw = np.einsum("bhie,bhje->bhij", dout, vh) * keep
    inner = (weights * dw).sum(-1)
    dx = weights * (dw - inner[..., None] + dlse[..., None])
    sink_share = np.where(live, np.exp(sink - np.where(np.isfinite(lse), lse, 0.0)), 0.0)
    result["dsinks"] = (sink_share * (dlse - inner)).sum((0, 2))
    if bias is not None:
        result["dbias"] = reduce_to(dx, np.asarray(bias).shape)
    if alibi_slopes is not None:
        dslopes = -(dx * distance).sum((2, 3))
        result["dalibi_slopes"] = dslopes.sum(0) if np.asarray(alibi_slopes).ndim == 1 else dslopes
    draw = dx * (1 - bent**2) if softcap else dx
    result["dq"] = scale * np.einsum("bhij,bhjd->bhid", draw, kh)
    dk = scale * np.einsum("bhij,bhid->bhjd", draw, q)
    dv = np.einsum("bhij,bhie->bhje", dropped, dout)
    result["dk"] = dk.reshape(b, g, h // g, s, d).sum(2)
    result["dv"] = dv.reshape(b, g, h // g, s, v.shape[3]).sum(2)
    return result
