#include "reference/attention.h"

#include "reference/listed_rows.h"
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

Score score_of(const AttentionProblem& p, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
               std::int64_t j) {
    Score score;
    // 1: scaled dot product
    for (std::int64_t c = 0; c < p.head_size; ++c) {
        score.dot += at(p.q, s.batch, h, s.query_begin + i, c) * at(p.k, s.batch, h / p.group(), s.key_begin + j, c);
    }
    score.scaled = p.scale * score.dot;
    // 2: soft-cap
    const double cap = p.options.softcap;
    score.capped = cap > 0 ? cap * std::tanh(score.scaled / cap) : score.scaled;
    // 3: bias, ALiBi
    score.biased = score.capped + (p.options.bias ? bias_at(p, b, h, i, j) : 0);
    if (p.options.alibi_slopes) { score.biased -= p.slope(b, h) * distance(p, s, i, j); }
    return score;
}

bool sees(const AttentionProblem& p, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
          std::int64_t j) {
    return i < s.queries && j < s.keys && p.allows(s, b, h, i, j) &&
           !(p.options.bias && bias_at(p, b, h, i, j) == -infinity);
}

double dropout_factor(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    return !p.drops() ? 1 : p.keeps(b, h, i, j) ? 1 / (1 - p.options.dropout.p) : 0;
}

void SoftmaxRow::compute(const AttentionProblem& p, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i) {
    const auto keys = static_cast<std::size_t>(s.keys);
    weight.assign(keys, 0);
    uncapped.assign(keys, 0);
    visible.assign(keys, 0);
    std::vector<double>& x = weight;

    double largest = -infinity;
    for (std::int64_t j = 0; j < s.keys; ++j) {
        const auto n = static_cast<std::size_t>(j);
        // Step 4 first: what is hidden is not even read.
        if (!sees(p, s, b, h, i, j)) { continue; }
        visible[n] = 1;
        const Score score = score_of(p, s, b, h, i, j);
        uncapped[n] = score.scaled;
        x[n] = score.biased;
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

std::vector<double> mixed_values(const AttentionProblem& p, const Sequence& s, std::int64_t b, std::int64_t h,
                                 std::int64_t i, const SoftmaxRow& row) {
    std::vector<double> out(static_cast<std::size_t>(p.value_size), 0);
    for (std::int64_t j = 0; j < s.keys; ++j) {
        const auto n = static_cast<std::size_t>(j);
        if (row.visible[n] == 0) { continue; }
        // 6: dropout
        const double w = row.weight[n] * dropout_factor(p, b, h, i, j);
        // 7: values
        for (std::int64_t e = 0; e < p.value_size; ++e) {
            out[static_cast<std::size_t>(e)] += w * at(p.v, s.batch, h / p.group(), s.key_begin + j, e);
        }
    }
    return out;
}

void score_row(const AttentionProblem& p, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
               ScoreStage stage, std::vector<double>& scores) {
    const bool masked = stage == ScoreStage::biased;
    scores.assign(static_cast<std::size_t>(p.keys), masked ? -infinity : 0);
    for (std::int64_t j = 0; i < s.queries && j < s.keys; ++j) {
        if (masked && !sees(p, s, b, h, i, j)) { continue; }
        const Score score = score_of(p, s, b, h, i, j);
        scores[static_cast<std::size_t>(j)] = stage == ScoreStage::product  ? score.scaled
                                              : stage == ScoreStage::capped ? score.capped
                                                                            : score.biased;
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
    for (std::int64_t b = 0; b < p.batch; ++b) {
        const Sequence s = p.sequence(b);
        for (std::int64_t h = 0; h < p.heads; ++h) {
            for (std::int64_t i = 0; i < s.rows; ++i) {
                const std::int64_t t = s.query_begin + i;
                if (i >= s.queries) {
                    for (std::int64_t e = 0; e < p.value_size; ++e) { put(p.out, s.batch, h, t, e, 0); }
                    if (p.lse) { put(p.lse, s.batch, h, t, -infinity); }
                    continue;
                }
                row.compute(p, s, b, h, i);
                put_row(p.out, s.batch, h, t, mixed_values(p, s, b, h, i, row));
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
        if (view) { put_all(sum, view); }
    }
    MutableView view;
    std::vector<double> sum;
};

/// What the heads of all batch entries add to.
struct SharedGradients {
    explicit SharedGradients(const AttentionGradients& g)
        : dbias(g.dbias), dsinks(g.dsinks), dslopes(g.dalibi_slopes) {}
    void store() const {
        dbias.store();
        dsinks.store();
        dslopes.store();
    }
    Sums dbias, dsinks, dslopes;
};

/// The way back for one batch entry and head of keys: dq of the query heads that share it, dk and dv.
class HeadBackward {
public:
    HeadBackward(const AttentionProblem& problem, std::int64_t b, std::int64_t g, SharedGradients& shared)
        : p_(problem),
          s_(problem.sequence(b)),
          b_(b),
          g_(g),
          shared_(shared),
          dk_(static_cast<std::size_t>(s_.key_rows * p_.head_size), 0),
          dv_(static_cast<std::size_t>(s_.key_rows * p_.value_size), 0) {}

    void run() {
        for (std::int64_t h = g_ * p_.group(); h < (g_ + 1) * p_.group(); ++h) {
            for (std::int64_t i = 0; i < s_.rows; ++i) {
                dq_.assign(static_cast<std::size_t>(p_.head_size), 0);
                if (i < s_.queries) {
                    row_.compute(p_, s_, b_, h, i);
                    of_scores(h, i, of_values(h, i));
                }
                put_row(p_.gradients.dq, s_.batch, h, s_.query_begin + i, dq_);
            }
        }
        store(dk_, p_.head_size, p_.gradients.dk);
        store(dv_, p_.value_size, p_.gradients.dv);
    }

private:
    /// of 7 and 6, out = sum_j wd_j v_j with wd = r keep w:
    ///   dv_j += wd_j dout,  dw_j = r keep dout . v_j,  delta = sum_j w_j dw_j = dout . out
    double of_values(std::int64_t h, std::int64_t i) {
        double delta = 0;
        dw_.assign(static_cast<std::size_t>(s_.keys), 0);
        for (std::int64_t j = 0; j < s_.keys; ++j) {
            const auto n = static_cast<std::size_t>(j);
            if (row_.visible[n] == 0) { continue; }
            const double keep = dropout_factor(p_, b_, h, i, j);
            const double wd = keep * row_.weight[n];
            for (std::int64_t e = 0; e < p_.value_size; ++e) {
                const double dout = at(p_.dout, s_.batch, h, s_.query_begin + i, e);
                dw_[n] += keep * dout * at(p_.v, s_.batch, g_, s_.key_begin + j, e);
                dv_[static_cast<std::size_t>(j * p_.value_size + e)] += wd * dout;
            }
            delta += row_.weight[n] * dw_[n];
        }
        return delta;
    }

    void of_scores(std::int64_t h, std::int64_t i, double delta) {
        const std::int64_t t = s_.query_begin + i;
        // of 5, softmax and lse:  dx_j = w_j (dw_j - delta + dlse); the sink has dw = 0
        if (p_.dlse && row_.lse != -infinity) { delta -= at(p_.dlse, s_.batch, h, t); }
        if (p_.gradients.dsinks) { shared_.dsinks[h] -= row_.sink_weight * delta; }
        for (std::int64_t j = 0; j < s_.keys; ++j) {
            const auto n = static_cast<std::size_t>(j);
            if (row_.visible[n] == 0) { continue; }
            double dx = row_.weight[n] * (dw_[n] - delta);
            // of 3
            if (p_.gradients.dbias) { shared_.dbias[shared_.dbias.index(b_, h, i, j)] += dx; }
            if (p_.gradients.dalibi_slopes) {
                const std::int64_t at_slope = shared_.dslopes.view.rank() == 2 ? b_ * p_.heads + h : h;
                shared_.dslopes[at_slope] -= dx * distance(p_, s_, i, j);
            }
            // of 2
            if (p_.options.softcap > 0) {
                const double tanh = std::tanh(row_.uncapped[n] / p_.options.softcap);
                dx *= 1 - tanh * tanh;
            }
            // of 1
            for (std::int64_t c = 0; c < p_.head_size; ++c) {
                dq_[static_cast<std::size_t>(c)] += p_.scale * dx * at(p_.k, s_.batch, g_, s_.key_begin + j, c);
                dk_[static_cast<std::size_t>(j * p_.head_size + c)] += p_.scale * dx * at(p_.q, s_.batch, h, t, c);
            }
        }
    }

    void store(const std::vector<double>& sums, std::int64_t columns, const MutableView& to) const {
        for (std::int64_t j = 0; j < s_.key_rows; ++j) {
            for (std::int64_t c = 0; c < columns; ++c) {
                put(to, s_.batch, g_, s_.key_begin + j, c, sums[static_cast<std::size_t>(j * columns + c)]);
            }
        }
    }

    const AttentionProblem& p_;
    Sequence s_;
    std::int64_t b_, g_;
    SharedGradients& shared_;
    SoftmaxRow row_;
    std::vector<double> dw_, dq_, dk_, dv_;
};

}  // namespace

void attend_backward(const AttentionProblem& p) {
    clear_behind(p, p.gradients.dq, p.options.cu_seqlens_q);
    clear_behind(p, p.gradients.dk, p.options.cu_seqlens_k);
    clear_behind(p, p.gradients.dv, p.options.cu_seqlens_k);
    SharedGradients shared(p.gradients);
    for (std::int64_t b = 0; b < p.batch; ++b) {
        for (std::int64_t g = 0; g < p.kv_heads; ++g) { HeadBackward(p, b, g, shared).run(); }
    }
    shared.store();
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
