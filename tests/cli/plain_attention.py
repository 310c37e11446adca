"""Attention once more, in plain Python, from the formulas: what `heed attend` is compared with where no golden file is."""
import math


def philox(counter, key):
    low, high = key & 0xFFFFFFFF, key >> 32
    c = list(counter)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ low, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ high, a & 0xFFFFFFFF]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return c


def usual_slopes(heads):
    power = 1 << (heads.bit_length() - 1)
    first = [2 ** (-8 * (k + 1) / power) for k in range(power)]
    return (first + [2 ** (-4 * (2 * k + 1) / power) for k in range(power)])[:heads]


def pick(tensor, *index):
    """Element of a tensor whose missing leading axes and axes of 1 are repeated."""
    shape = [1] * (len(index) - len(tensor.shape)) + tensor.shape
    offset = 0
    for extent, at in zip(shape, index, strict=True):
        offset = offset * extent + (0 if extent == 1 else at)
    return tensor.values[offset]


def attend(t, scale=None, causal=False, top_left=False, window=(-1, -1), softcap=0, alibi=None, dropout=0, seed=0,
           offset=0):
    """out, lse, weights as flat lists. `t`: the tensors of the file by name; `alibi`: slopes."""
    (B, H, T, D), (_, G, S, _), E = t["q"].shape, t["k"].shape, t["v"].shape[3]
    scale = 1 / math.sqrt(D) if scale is None else scale
    out, lse, weights = [], [], []
    for b in range(B):
        queries = t["query_lengths"].values[b] if "query_lengths" in t else T
        keys = t["key_lengths"].values[b] if "key_lengths" in t else S
        for h in range(H):
            g = h // (H // G)
            for i in range(T):
                p = pick(t["query_positions"], b, i) if "query_positions" in t else i + (0 if top_left else S - T)
                scores = {}
                for j in range(keys if i < queries else 0):
                    at = pick(t["key_positions"], b, j) if "key_positions" in t else j
                    hidden = (causal and at > p) or (window[0] >= 0 and at < p - window[0])
                    hidden = hidden or (window[1] >= 0 and at > p + window[1])
                    if hidden or ("mask" in t and not pick(t["mask"], b, h, i, j)):
                        continue
                    x = scale * sum(pick(t["q"], b, h, i, c) * pick(t["k"], b, g, j, c) for c in range(D))
                    x = softcap * math.tanh(x / softcap) if softcap else x
                    x += pick(t["bias"], b, h, i, j) if "bias" in t else 0
                    x -= alibi[h] * abs(p - at) if alibi else 0
                    if x != -math.inf:
                        scores[j] = x
                sink = t["sinks"].values[h] if "sinks" in t and i < queries else -math.inf
                top = max([sink, *scores.values()])
                total = math.exp(sink - top) if sink > -math.inf else 0
                total += sum(math.exp(x - top) for x in scores.values())
                lse.append(top + math.log(total) if total else -math.inf)
                row = {j: math.exp(x - top) / total for j, x in scores.items()}
                weights += [row.get(j, 0) for j in range(S)]
                if dropout:
                    threshold = int(dropout * 2**32 + 0.5)
                    for j in row:
                        keep = philox((j // 4, i, b * H + h, offset), seed)[j % 4] >= threshold
                        row[j] *= keep / (1 - dropout)
                out += [sum(w * pick(t["v"], b, g, j, e) for j, w in row.items()) for e in range(E)]
    return out, lse, weights
