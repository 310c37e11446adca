#include "reference/attention.h"

#include "reference/rows.h"

#include <cmath>

namespace heed::reference {
namespace {

/// A rank-4 tensor [b, h, row, column] of any float type, read as double.
double at(const View& x, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column) {
    return read_number(x.dtype(), x.data(),
                       b * x.stride(0) + h * x.stride(1) + row * x.stride(2) + column * x.stride(3));
}
void put(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column, double value) {
    write_number(x.dtype(), x.data(), b * x.stride(0) + h * x.stride(1) + row * x.stride(2) + column * x.stride(3),
                 value);
}
double at(const View& x, std::int64_t b, std::int64_t h, std::int64_t row) {
    return read_number(x.dtype(), x.data(), b * x.stride(0) + h * x.stride(1) + row * x.stride(2));
}
void put(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t row, double value) {
    write_number(x.dtype(), x.data(), b * x.stride(0) + h * x.stride(1) + row * x.stride(2), value);
}

double bias_at(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    const View& bias = p.options.bias;
    return read_number(bias.dtype(), bias.data(), AttentionProblem::broadcast(bias, b, h, i, j));
}

double distance(const AttentionProblem& p, const Sequence& s, std::int64_t i, std::int64_t j) {
    return std::abs(static_cast<double>(p.query_position(s, i) - p.key_position(s, j)));
}

}  // namespace

void SoftmaxRow::compute(const AttentionProblem& p, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i) {
    const auto keys = static_cast<std::size_t>(s.keys);
    const std::int64_t g = h / p.group();
    weight.assign(keys, 0);
    uncapped.assign(keys, 0);
    visible.assign(keys, 0);
    std::vector<double>& x = weight;

    double largest = -infinity;
    for (std::int64_t j = 0; j < s.keys; ++j) {
        const auto n = static_cast<std::size_t>(j);
        // Step 4 first: what is hidden is not even read.
        if (!p.allows(s, b, h, i, j)) { continue; }
        const double bias = p.options.bias ? bias_at(p, b, h, i, j) : 0;
        if (bias == -infinity) { continue; }
        visible[n] = 1;
        // 1: scaled dot product
        double dot = 0;
        for (std::int64_t c = 0; c < p.head_size; ++c) {
            dot += at(p.q, s.batch, h, s.query_begin + i, c) * at(p.k, s.batch, g, s.key_begin + j, c);
        }
        uncapped[n] = p.scale * dot;
        x[n] = uncapped[n];
        // 2: soft-cap
        const double cap = p.options.softcap;
        if (cap > 0) { x[n] = cap * std::tanh(x[n] / cap); }
        // 3: bias, ALiBi
        x[n] += bias;
        if (p.options.alibi_slopes) { x[n] -= p.slope(b, h) * distance(p, s, i, j); }
        largest = std::isnan(x[n]) ? x[n] : std::max(largest, x[n]);
    }

    // 5: softmax, with the sink in the denominator
    const double sink = p.options.sinks ? p.sink(h) : -infinity;
    if (largest < sink || std::isnan(sink)) { largest = sink; }
    lse = -infinity;
    sink_weight = 0;
    if (largest == -infinity) {
        x.assign(keys, 0);
        return;
    }
    double sum = std::exp(sink - largest);
    sink_weight = sum;
    for (std::size_t n = 0; n < keys; ++n) {
        x[n] = visible[n] != 0 ? std::exp(x[n] - largest) : 0;
        sum += x[n];
    }
    for (std::size_t n = 0; n < keys; ++n) {
        if (visible[n] != 0) { x[n] /= sum; }
    }
    sink_weight /= sum;
    lse = largest + std::log(sum);
}

void score_row(const AttentionProblem& p, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
               ScoreStage stage, std::vector<double>& scores) {
    const bool masked = stage == ScoreStage::biased;
    scores.assign(static_cast<std::size_t>(p.keys), masked ? -infinity : 0);
    for (std::int64_t j = 0; i < s.queries && j < s.keys; ++j) {
        const double bias = masked && p.options.bias ? bias_at(p, b, h, i, j) : 0;
        if (masked && (bias == -infinity || !p.allows(s, b, h, i, j))) { continue; }
        double dot = 0;
        for (std::int64_t c = 0; c < p.head_size; ++c) {
            dot += at(p.q, s.batch, h, s.query_begin + i, c) * at(p.k, s.batch, h / p.group(), s.key_begin + j, c);
        }
        double x = p.scale * dot;
        const double cap = stage == ScoreStage::product ? 0 : p.options.softcap;
        if (cap > 0) { x = cap * std::tanh(x / cap); }
        if (masked && p.options.alibi_slopes) { x -= p.slope(b, h) * distance(p, s, i, j); }
        scores[static_cast<std::size_t>(j)] = x + bias;
    }
}

namespace {

/// Packed batches may end before the tensors do: the rows behind the last sequence are 0 (an lse of nothing), as for
/// any row past its length.
void clear_behind(const AttentionProblem& p, const MutableView& view, const View& cumulative) {
    if (!p.packed || !view) { return; }
    const bool is_lse = view.rank() == 3;
    for (std::int64_t h = 0; h < view.extent(1); ++h) {
        for (std::int64_t t = read_integer(cumulative.dtype(), cumulative.data(), p.batch * cumulative.stride(0));
             t < view.extent(2); ++t) {
            if (is_lse) { put(view, 0, h, t, -infinity); }
            for (std::int64_t c = 0; !is_lse && c < view.extent(3); ++c) { put(view, 0, h, t, c, 0); }
        }
    }
}

/// out[r][j], the weights of the listed rows.
void listed_weights(const AttentionProblem& p, std::int64_t b, std::int64_t h, const std::int64_t* rows,
                    std::int64_t count, std::int64_t stride, double* out) {
    SoftmaxRow row;
    const Sequence s = p.sequence(b);
    for (std::int64_t r = 0; r < count; ++r) {
        double* target = out + r * stride;
        if (rows[r] >= s.queries) {
            std::fill(target, target + s.keys, 0.0);
            continue;
        }
        row.compute(p, s, b, h, rows[r]);
        std::copy(row.weight.begin(), row.weight.end(), target);
    }
}

}  // namespace

void attend(const AttentionProblem& p) {
    clear_behind(p, p.out, p.options.cu_seqlens_q);
    clear_behind(p, p.lse, p.options.cu_seqlens_q);
    SoftmaxRow row;
    const double kept = 1 / (1 - p.options.dropout.p);
    for (std::int64_t b = 0; b < p.batch; ++b) {
        const Sequence s = p.sequence(b);
        for (std::int64_t h = 0; h < p.heads; ++h) {
            const std::int64_t g = h / p.group();
            for (std::int64_t i = 0; i < s.rows; ++i) {
                const std::int64_t t = s.query_begin + i;
                if (i >= s.queries) {
                    for (std::int64_t e = 0; e < p.value_size; ++e) { put(p.out, s.batch, h, t, e, 0); }
                    if (p.lse) { put(p.lse, s.batch, h, t, -infinity); }
                    continue;
                }
                row.compute(p, s, b, h, i);
                std::vector<double> out(static_cast<std::size_t>(p.value_size), 0);
                for (std::int64_t j = 0; j < s.keys; ++j) {
                    const auto n = static_cast<std::size_t>(j);
                    if (row.visible[n] == 0) { continue; }
                    // 6: dropout
                    const double w = !p.drops() ? row.weight[n] : row.weight[n] * (p.keeps(b, h, i, j) ? kept : 0);
                    // 7: values
                    for (std::int64_t e = 0; e < p.value_size; ++e) {
                        out[static_cast<std::size_t>(e)] += w * at(p.v, s.batch, g, s.key_begin + j, e);
                    }
                }
                for (std::int64_t e = 0; e < p.value_size; ++e) {
                    put(p.out, s.batch, h, t, e, out[static_cast<std::size_t>(e)]);
                }
                if (p.lse) { put(p.lse, s.batch, h, t, row.lse); }
            }
        }
    }
}

namespace {

/// Sums that many rows add to, kept in double until all have been added.
struct Sums {
    explicit Sums(const MutableView& target) : view(target) {
        if (view) { sum.assign(static_cast<std::size_t>(view.shape().elements()), 0); }
    }
    double& operator[](std::int64_t n) { return sum[static_cast<std::size_t>(n)]; }
    /// Row-major index of (b, h, i, j), axes of extent 1 repeated.
    std::int64_t index(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
        const std::int64_t at[4] = {b, h, i, j};
        std::int64_t n = 0;
        for (int axis = 0; axis < 4; ++axis) { n = n * view.extent(axis) + (view.extent(axis) == 1 ? 0 : at[axis]); }
        return n;
    }
    void store() const {
        if (!view) { return; }
        const Shape row_major = view.shape().row_major();
        for (std::int64_t n = 0; n < static_cast<std::int64_t>(sum.size()); ++n) {
            std::int64_t offset = 0;
            for (int axis = 0; axis < view.rank(); ++axis) {
                offset += n / row_major[axis] % view.extent(axis) * view.stride(axis);
            }
            write_number(view.dtype(), view.data(), offset, sum[static_cast<std::size_t>(n)]);
        }
    }
    MutableView view;
    std::vector<double> sum;
};

}  // namespace

void attend_backward(const AttentionProblem& p) {
    clear_behind(p, p.gradients.dq, p.options.cu_seqlens_q);
    clear_behind(p, p.gradients.dk, p.options.cu_seqlens_k);
    clear_behind(p, p.gradients.dv, p.options.cu_seqlens_k);
    SoftmaxRow row;
    const double r = 1 / (1 - p.options.dropout.p);
    Sums dbias(p.gradients.dbias);
    Sums dsinks(p.gradients.dsinks);
    Sums dslopes(p.gradients.dalibi_slopes);
    std::vector<double> dw;
    std::vector<double> dq(static_cast<std::size_t>(p.head_size));

    for (std::int64_t b = 0; b < p.batch; ++b) {
        const Sequence s = p.sequence(b);
        for (std::int64_t g = 0; g < p.kv_heads; ++g) {
            std::vector<double> dk(static_cast<std::size_t>(s.key_rows * p.head_size), 0);
            std::vector<double> dv(static_cast<std::size_t>(s.key_rows * p.value_size), 0);
            for (std::int64_t h = g * p.group(); h < (g + 1) * p.group(); ++h) {
                for (std::int64_t i = 0; i < s.rows; ++i) {
                    const std::int64_t t = s.query_begin + i;
                    dq.assign(dq.size(), 0);
                    if (i < s.queries) {
                        row.compute(p, s, b, h, i);
                        // of 7 and 6, out = sum_j wd_j v_j with wd = r keep w:
                        //   dv_j += wd_j dout,  dw_j = r keep dout . v_j,  delta = sum_j w_j dw_j = dout . out
                        double delta = 0;
                        dw.assign(static_cast<std::size_t>(s.keys), 0);
                        for (std::int64_t j = 0; j < s.keys; ++j) {
                            const auto n = static_cast<std::size_t>(j);
                            if (row.visible[n] == 0) { continue; }
                            const double keep = !p.drops() ? 1 : p.keeps(b, h, i, j) ? r : 0;
                            const double wd = keep * row.weight[n];
                            for (std::int64_t e = 0; e < p.value_size; ++e) {
                                const double dout = at(p.dout, s.batch, h, t, e);
                                dw[n] += keep * dout * at(p.v, s.batch, g, s.key_begin + j, e);
                                dv[static_cast<std::size_t>(j * p.value_size + e)] += wd * dout;
                            }
                            delta += row.weight[n] * dw[n];
                        }
                        // of 5, softmax and lse:  dx_j = w_j (dw_j - delta + dlse); the sink has dw = 0
                        if (p.dlse && row.lse != -infinity) { delta -= at(p.dlse, s.batch, h, t); }
                        if (p.gradients.dsinks) { dsinks[h] -= row.sink_weight * delta; }
                        for (std::int64_t j = 0; j < s.keys; ++j) {
                            const auto n = static_cast<std::size_t>(j);
                            if (row.visible[n] == 0) { continue; }
                            double dx = row.weight[n] * (dw[n] - delta);
                            // of 3
                            if (p.gradients.dbias) { dbias[dbias.index(b, h, i, j)] += dx; }
                            if (p.gradients.dalibi_slopes) {
                                const std::int64_t at_slope = dslopes.view.rank() == 2 ? b * p.heads + h : h;
                                dslopes[at_slope] -= dx * distance(p, s, i, j);
                            }
                            // of 2
                            if (p.options.softcap > 0) {
                                const double tanh = std::tanh(row.uncapped[n] / p.options.softcap);
                                dx *= 1 - tanh * tanh;
                            }
                            // of 1
                            for (std::int64_t c = 0; c < p.head_size; ++c) {
                                dq[static_cast<std::size_t>(c)] +=
                                    p.scale * dx * at(p.k, s.batch, g, s.key_begin + j, c);
                                dk[static_cast<std::size_t>(j * p.head_size + c)] +=
                                    p.scale * dx * at(p.q, s.batch, h, t, c);
                            }
                        }
                    }
                    for (std::int64_t c = 0; c < p.head_size; ++c) {
                        put(p.gradients.dq, s.batch, h, t, c, dq[static_cast<std::size_t>(c)]);
                    }
                }
            }
            for (std::int64_t j = 0; j < s.key_rows; ++j) {
                for (std::int64_t c = 0; c < p.head_size; ++c) {
                    put(p.gradients.dk, s.batch, g, s.key_begin + j, c,
                        dk[static_cast<std::size_t>(j * p.head_size + c)]);
                }
                for (std::int64_t e = 0; e < p.value_size; ++e) {
                    put(p.gradients.dv, s.batch, g, s.key_begin + j, e,
                        dv[static_cast<std::size_t>(j * p.value_size + e)]);
                }
            }
        }
    }
    dbias.store();
    dsinks.store();
    dslopes.store();
}

AttentionKernel attention_kernel() {
    AttentionKernel row;
    row.name = "reference";
    row.what = "plain loops with double sums, one thread";
    row.forward = [](detail::Place&, const AttentionProblem& p) { attend(p); };
    row.backward = [](detail::Place&, const AttentionProblem& p) { attend_backward(p); };
    row.wide_weights = listed_weights;
    return row;
}

}  // namespace heed::reference
