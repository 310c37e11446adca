#include "nn/experts.h"

#include <heed/elementwise.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/dispatch.h"
#include "base/place.h"
#include "base/pool.h"
#include "ops/clamped_gate.h"
#include "ops/host_copy.h"

namespace heed {
namespace {

using Score = ExpertConfig::Score;

/// Numbers of a row-major matrix as doubles.
struct Matrix {
    std::int64_t columns = 0;
    std::vector<double> numbers;
    double* row(std::int64_t i) { return numbers.data() + i * columns; }
    const double* row(std::int64_t i) const { return numbers.data() + i * columns; }
};

Matrix read_matrix(Context& context, const View& given) {
    const Tensor copied = on_host(context) ? Tensor() : host_copy(context, given);
    const View view = copied ? copied.view() : given;
    Matrix m{view.extent(1), std::vector<double>(static_cast<std::size_t>(view.shape().elements()))};
    for (std::int64_t i = 0; i < view.extent(0); ++i) {
        for (std::int64_t j = 0; j < m.columns; ++j) {
            m.row(i)[j] = read_number(view.dtype(), view.data(), i * view.stride(0) + j * view.stride(1));
        }
    }
    return m;
}

/// What the choice is made by: scores, of which chosen ones become weights.
void score_row(Score score, const double* logits, std::int64_t experts, double* scores) {
    if (score == Score::softmax_chosen) {
        std::copy(logits, logits + experts, scores);
    } else if (score == Score::sigmoid) {
        for (std::int64_t e = 0; e < experts; ++e) { scores[e] = 1 / (1 + std::exp(-logits[e])); }
    } else {
        const double most = *std::max_element(logits, logits + experts);
        double sum = 0;
        for (std::int64_t e = 0; e < experts; ++e) { sum += scores[e] = std::exp(logits[e] - most); }
        for (std::int64_t e = 0; e < experts; ++e) { scores[e] /= sum; }
    }
}

/// The `count` largest, the first of equals first; not-a-number last.
std::vector<std::int64_t> largest(const std::vector<double>& values, std::int64_t count) {
    std::vector<std::int64_t> order(values.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    const auto better = [&](std::int64_t a, std::int64_t b) {
        const double x = values[static_cast<std::size_t>(a)], y = values[static_cast<std::size_t>(b)];
        if (std::isnan(x) || std::isnan(y)) { return !std::isnan(x) || (std::isnan(y) && a < b); }
        return x != y ? x > y : a < b;
    };
    std::partial_sort(order.begin(), order.begin() + count, order.end(), better);
    order.resize(static_cast<std::size_t>(count));
    return order;
}

std::vector<std::int64_t> choose(const ExpertConfig& c, std::vector<double> scores) {
    if (c.groups > 1) {
        const std::int64_t each = c.routed / c.groups;
        std::vector<double> worth;
        for (std::int64_t g = 0; g < c.groups; ++g) {
            std::vector<double> members(scores.begin() + g * each, scores.begin() + (g + 1) * each);
            std::ranges::sort(members, std::greater<>());
            worth.push_back(std::accumulate(members.begin(), members.begin() + c.group_best, 0.0));
        }
        std::vector<bool> open(static_cast<std::size_t>(c.groups), false);
        for (const std::int64_t g : largest(worth, c.top_groups)) { open[static_cast<std::size_t>(g)] = true; }
        for (std::int64_t e = 0; e < c.routed; ++e) {
            if (!open[static_cast<std::size_t>(e / each)]) {
                scores[static_cast<std::size_t>(e)] = -std::numeric_limits<double>::infinity();
            }
        }
    }
    return largest(scores, c.active);
}

/// Weights of the chosen experts from their scores.
void weigh(const ExpertConfig& c, double* w) {
    const std::int64_t k = c.active;
    if (c.score == Score::softmax_chosen) {
        const double most = *std::max_element(w, w + k);
        double sum = 0;
        for (std::int64_t i = 0; i < k; ++i) { sum += w[i] = std::exp(w[i] - most); }
        for (std::int64_t i = 0; i < k; ++i) { w[i] *= c.scale / sum; }
        return;
    }
    double sum = c.score == Score::sigmoid ? 1e-20 : 0;
    for (std::int64_t i = 0; i < k; ++i) { sum += w[i]; }
    for (std::int64_t i = 0; i < k; ++i) { w[i] *= c.scale / (c.normalise ? sum : 1); }
}

/// Of one token: dlogits [E] += the gradient through its weights, given dw [k].
void route_row_backward(const ExpertConfig& c, const double* logits, const std::int64_t* chosen, const double* dw,
                        double* dlogits) {
    const auto k = static_cast<std::size_t>(c.active);
    std::vector<double> scores(static_cast<std::size_t>(c.routed));
    score_row(c.score, logits, c.routed, scores.data());
    std::vector<double> u(k), du(k);
    for (std::size_t i = 0; i < k; ++i) { u[i] = scores[static_cast<std::size_t>(chosen[i])]; }
    if (c.score == Score::softmax_chosen) {
        weigh(c, u.data());  // scale times a softmax over the chosen
        double mean = 0;
        for (std::size_t i = 0; i < k; ++i) { mean += dw[i] * u[i] / c.scale; }
        for (std::size_t i = 0; i < k; ++i) { dlogits[chosen[i]] += u[i] * (dw[i] - mean); }
        return;
    }
    // w_i = scale u_i / s with s = sum of u, or w_i = scale u_i
    double s = c.score == Score::sigmoid ? 1e-20 : 0, dot = 0;
    for (std::size_t i = 0; i < k; ++i) {
        s += u[i];
        dot += dw[i] * u[i];
    }
    for (std::size_t i = 0; i < k; ++i) {
        du[i] = c.normalise ? c.scale * (dw[i] / s - dot / (s * s)) : c.scale * dw[i];
    }
    if (c.score == Score::sigmoid) {
        for (std::size_t i = 0; i < k; ++i) { dlogits[chosen[i]] += du[i] * u[i] * (1 - u[i]); }
        return;
    }
    double mean = 0;
    for (std::size_t i = 0; i < k; ++i) { mean += du[i] * u[i]; }
    for (std::int64_t e = 0; e < c.routed; ++e) { dlogits[e] -= scores[static_cast<std::size_t>(e)] * mean; }
    for (std::size_t i = 0; i < k; ++i) { dlogits[chosen[i]] += du[i] * u[i]; }
}

void write_row(const MutableView& view, std::int64_t i, const double* numbers) {
    for (std::int64_t j = 0; j < view.extent(1); ++j) {
        write_number(view.dtype(), view.data(), i * view.stride(0) + j * view.stride(1), numbers[j]);
    }
}

}  // namespace

Routes route(Tape& tape, const ExpertConfig& config, const Value& logits, const View& given_correction) {
    const bool needs = tape.wants({&logits});
    Context& context = tape.context();
    const bool host = on_host(context);
    Routes routes;
    routes.tokens = logits.extent(0);
    routes.active = config.active;
    routes.weights = tape.empty(logits.dtype(), {routes.tokens, config.active}, needs);
    const Matrix all = read_matrix(context, logits);
    const Tensor copied = !host && given_correction ? host_copy(context, given_correction) : Tensor();
    const View correction = copied ? copied.view() : given_correction;
    Tensor chosen_weights = host ? Tensor() : Tensor(DType::f64, routes.weights.shape());
    const MutableView to = host ? routes.weights.view() : chosen_weights.view();
    std::vector<double> scores(static_cast<std::size_t>(config.routed)),
        weights(static_cast<std::size_t>(config.active));
    for (std::int64_t n = 0; n < routes.tokens; ++n) {
        score_row(config.score, all.row(n), config.routed, scores.data());
        std::vector<double> wanted = scores;
        if (correction) {
            for (std::size_t e = 0; e < wanted.size(); ++e) {
                wanted[e] += read_number(correction.dtype(), correction.data(),
                                         static_cast<std::int64_t>(e) * correction.stride(0));
            }
        }
        const std::vector<std::int64_t> chosen = choose(config, wanted);
        for (std::size_t i = 0; i < chosen.size(); ++i) { weights[i] = scores[static_cast<std::size_t>(chosen[i])]; }
        weigh(config, weights.data());
        write_row(to, n, weights.data());
        routes.experts.insert(routes.experts.end(), chosen.begin(), chosen.end());
    }
    if (!host) { convert(context, placed(context, std::move(chosen_weights)), routes.weights.view()); }
    if (!needs) { return routes; }
    tape.record(routes.weights, [config, logits, experts = routes.experts, dlogits = Sink(logits)](
                                    Tape& back, std::span<const View> g) {
        SinkMemory memory(back, dlogits);
        const bool here = on_host(back.context());
        Tensor apart = here ? Tensor() : Tensor(DType::f64, logits.shape());
        const MutableView place = here ? memory.view() : apart.view();
        const Matrix z = read_matrix(back.context(), logits), dw = read_matrix(back.context(), g[0]);
        std::vector<double> row(static_cast<std::size_t>(config.routed));
        for (std::int64_t n = 0; n < logits.extent(0); ++n) {
            std::ranges::fill(row, 0.0);
            route_row_backward(config, z.row(n), experts.data() + n * config.active, dw.row(n), row.data());
            write_row(place, n, row.data());
        }
        if (!here) { convert(back.context(), placed(back.context(), std::move(apart)), memory.view()); }
    });
    return routes;
}

namespace {

/// The rows that a token gets, in the order of the experts: sums do not depend on anything else.
struct Visits {
    std::vector<std::pair<std::size_t, std::int64_t>> rows;  ///< of which output, which row
};

std::vector<Visits> visits_of(std::int64_t tokens, const std::vector<ExpertOutput>& outputs) {
    std::vector<Visits> visits(static_cast<std::size_t>(tokens));
    for (std::size_t e = 0; e < outputs.size(); ++e) {
        for (std::size_t i = 0; i < outputs[e].tokens.size(); ++i) {
            visits[static_cast<std::size_t>(outputs[e].tokens[i])].rows.emplace_back(e, static_cast<std::int64_t>(i));
        }
    }
    return visits;
}

template <class T>
struct Rows {
    explicit Rows(const View& view) : data(view.as<T>()), stride(view.stride(0)) {}
    const T* operator[](std::int64_t i) const { return data + i * stride; }
    const T* data;
    std::int64_t stride;
};

template <class T>
void combine_rows(detail::Pool& pool, const Routes& routes, const std::vector<ExpertOutput>& outputs,
                  const MutableView& out) {
    const std::int64_t d = out.extent(1);
    const std::vector<Visits> visits = visits_of(routes.tokens, outputs);
    const auto lock = pool.lock();
    detail::parallel(pool, routes.tokens,
                     detail::effort_for(static_cast<double>(out.shape().elements() * routes.active)),
                     [&](std::int64_t n, int) {
                         std::vector<double> sum(static_cast<std::size_t>(d), 0.0);
                         for (const auto& [e, i] : visits[static_cast<std::size_t>(n)].rows) {
                             const ExpertOutput& part = outputs[e];
                             const View& weights = routes.weights;
                             const double w = read_number(weights.dtype(), weights.data(),
                                                          n * routes.active + part.slots[static_cast<std::size_t>(i)]);
                             const T* row = Rows<T>(part.rows)[i];
                             for (std::int64_t j = 0; j < d; ++j) {
                                 sum[static_cast<std::size_t>(j)] += w * static_cast<double>(row[j]);
                             }
                         }
                         write_row(out, n, sum.data());
                     });
}

}  // namespace

Value combine(Tape& tape, const Routes& routes, std::vector<ExpertOutput> outputs, std::int64_t d) {
    if (!on_host(tape.context())) { return combine_by_operations(tape, routes, std::move(outputs), d); }
    bool needs = tape.wants({&routes.weights});
    for (const ExpertOutput& part : outputs) { needs = needs || tape.wants({&part.rows}); }
    const DType dtype = outputs.empty() ? DType::f32 : outputs[0].rows.dtype();
    Value out = tape.empty(dtype, {routes.tokens, d}, needs);
    dispatch_float(dtype,
                   [&]<class T>() { combine_rows<T>(detail::pool_of(tape.context()), routes, outputs, out.view()); });
    if (!needs) { return out; }
    std::vector<Sink> sinks;
    for (const ExpertOutput& part : outputs) { sinks.emplace_back(part.rows); }
    tape.record(out, [routes, outputs = std::move(outputs), sinks = std::move(sinks), dweights = Sink(routes.weights)](
                         Tape& back, std::span<const View> g) {
        // out_n = sum over visits of w row:  drow = w dout_n,  dw = row . dout_n
        const View& dout = g[0];
        const std::int64_t width = dout.extent(1);
        SinkMemory mw(back, dweights);
        const MutableView dw = mw.view();
        for (std::size_t e = 0; e < outputs.size(); ++e) {
            const ExpertOutput& part = outputs[e];
            SinkMemory mr(back, sinks[e]);
            const MutableView drows = mr.view();
            const View rows = part.rows, weights = routes.weights;
            for (std::size_t i = 0; i < part.tokens.size(); ++i) {
                const std::int64_t n = part.tokens[i], at = n * routes.active + part.slots[i];
                const double w = read_number(weights.dtype(), weights.data(), at);
                double dot = 0;
                for (std::int64_t j = 0; j < width; ++j) {
                    const double x = read_number(dout.dtype(), dout.data(), n * dout.stride(0) + j);
                    const auto row = static_cast<std::int64_t>(i);
                    if (dw) { dot += x * read_number(rows.dtype(), rows.data(), row * rows.stride(0) + j); }
                    if (drows) { write_number(drows.dtype(), drows.data(), row * drows.stride(0) + j, w * x); }
                }
                if (dw) { write_number(dw.dtype(), dw.data(), at, dot); }
            }
        }
    });
    return out;
}

Value clamped_gate(Tape& tape, const Value& gate, const Value& up, double limit, double alpha) {
    const ClampedGate options{.limit = limit, .alpha = alpha};
    const Tape::Operation operation{
        .forward = [=](Context& context, std::span<const View> in,
                       const MutableView& out) { clamped_gate(context, options, in[0], in[1], out); },
        .backward =
            [=](Context& context, std::span<const View> in, const View&, const View& dout,
                std::span<const MutableView> d) {
                clamped_gate_backward(context, options, in[0], in[1], dout, d[0], d[1]);
            }};
    const std::array<Value, 2> inputs = {gate, up};
    return tape.apply(operation, inputs, gate.dtype(), gate.shape());
}

}  // namespace heed
