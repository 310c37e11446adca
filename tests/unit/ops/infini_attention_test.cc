#include "unit/ops/infini_attention_testing.h"

namespace heed {
namespace {

using namespace testing_infini;
using testing_linear::distance;
using testing_linear::same_bits;

double phi(double x) { return x > 0 ? x + 1 : std::exp(x); }

/// Steps 1 to 4 in plain loops over one batch entry and head, from an empty memory.
Tensor expected_output(const InfiniInputs& in, const InfiniOptions& o) {
    Tensor out = in.out_like(DType::f64);
    const auto row = [](const Tensor& x, std::int64_t b, std::int64_t h, std::int64_t t) {
        const Shape& s = x.shape();
        return x.as<double>() + ((b * s[1] + h) * s[2] + t) * s[3];
    };
    const Tensor& mq = o.memory_q ? in.memory_q : in.q;
    const Tensor& mk = o.memory_k ? in.memory_k : in.k;
    for (std::int64_t b = 0; b < in.B; ++b) {
        for (std::int64_t h = 0; h < in.H; ++h) {
            const std::int64_t g = h / (in.H / in.G);
            const double gate = 1 / (1 + std::exp(-in.gates.as<double>()[h]));
            std::vector<std::vector<double>> M(static_cast<std::size_t>(in.D),
                                               std::vector<double>(static_cast<std::size_t>(in.E), 0));
            std::vector<double> z(static_cast<std::size_t>(in.D), 0);
            const auto retrieved = [&](const double* x, std::int64_t e) {
                double numerator = 0;
                double denominator = 0;
                for (std::int64_t d = 0; d < in.D; ++d) {
                    numerator += phi(x[d]) * M[static_cast<std::size_t>(d)][static_cast<std::size_t>(e)];
                    denominator += phi(x[d]) * z[static_cast<std::size_t>(d)];
                }
                return denominator < o.epsilon ? 0 : numerator / denominator;
            };
            for (std::int64_t begin = 0; begin < in.T; begin += o.segment) {
                const std::int64_t end = std::min(in.T, begin + o.segment);
                for (std::int64_t i = begin; i < end; ++i) {
                    std::vector<double> w;
                    double sum = 0;
                    for (std::int64_t j = begin; j <= i; ++j) {
                        double dot = 0;
                        for (std::int64_t d = 0; d < in.D; ++d) {
                            dot += row(in.q, b, h, i)[d] * row(in.k, b, g, j)[d];
                        }
                        w.push_back(std::exp(dot / std::sqrt(static_cast<double>(in.D))));
                        sum += w.back();
                    }
                    for (std::int64_t e = 0; e < in.E; ++e) {
                        double local = 0;
                        for (std::size_t j = 0; j < w.size(); ++j) {
                            local += w[j] / sum * row(in.v, b, g, begin + static_cast<std::int64_t>(j))[e];
                        }
                        const double mixed = gate * retrieved(row(mq, b, h, i), e) + (1 - gate) * local;
                        const bool bypass = begin == 0 && o.first_segment == FirstSegment::local_only;
                        const Shape strides = out.shape().row_major();
                        out.as<double>()[b * strides[0] + h * strides[1] + i * strides[2] + e] = bypass ? local : mixed;
                    }
                }
                if (end - begin < o.segment) { break; }
                const auto before = M;
                std::vector<double> news;
                for (std::int64_t t = begin; t < end; ++t) {
                    for (std::int64_t e = 0; e < in.E; ++e) {
                        const double r = o.update == MemoryUpdate::delta ? retrieved(row(mk, b, g, t), e) : 0;
                        news.push_back(row(in.v, b, g, t)[e] - r);
                    }
                }
                for (std::int64_t t = begin; t < end; ++t) {
                    for (std::int64_t d = 0; d < in.D; ++d) {
                        const double f = phi(row(mk, b, g, t)[d]);
                        z[static_cast<std::size_t>(d)] += f;
                        for (std::int64_t e = 0; e < in.E; ++e) {
                            M[static_cast<std::size_t>(d)][static_cast<std::size_t>(e)] +=
                                f * news[static_cast<std::size_t>((t - begin) * in.E + e)];
                        }
                    }
                }
            }
        }
    }
    return out;
}

TEST(InfiniAttention, IsTheFormula) {
    Context context(1);
    InfiniInputs in = filled();
    for (const std::int64_t segment : {1, 4, 7, 23, 50}) {
        const std::vector<InfiniOptions> wide = option_list(in, segment);
        std::vector<Tensor> expected;
        for (const InfiniOptions& o : wide) {
            InfiniMemory memory;
            expected.push_back(expected_output(in, o));
            EXPECT_LE(distance(in_calls(context, in, o, {}, memory), expected.back()), 1e-12) << segment;
        }
        InfiniInputs narrow = filled();
        narrow.narrow(DType::f32);
        const std::vector<InfiniOptions> options = option_list(narrow, segment);
        for (std::size_t n = 0; n < options.size(); ++n) {
            InfiniMemory memory;
            EXPECT_LE(distance(in_calls(context, narrow, options[n], {}, memory), expected[n]), 1e-5) << segment;
        }
    }
}

TEST(InfiniAttention, ReferenceOnDemandEqualsTheKernels) {
    Context context(1);
    for (const DType dtype : {DType::f32, DType::bf16}) {
        InfiniInputs in = filled({.B = 2, .H = 4, .G = 2, .T = 75, .D = 16, .E = 24});
        in.narrow(dtype);
        for (InfiniOptions o : option_list(in, 20)) {
            InfiniMemory memory;
            const Tensor got = in_calls(context, in, o, {7, 30}, memory);
            o.local.kernel = "reference";
            InfiniMemory expected_memory;
            const Tensor expected = in_calls(context, in, o, {}, expected_memory);
            EXPECT_LE(distance(got, expected), dtype == DType::f32 ? 1e-5 : 8e-3);
            EXPECT_LE(distance(memory.m, expected_memory.m), 1e-5);
            EXPECT_LE(distance(memory.z, expected_memory.z), 1e-5);
            EXPECT_EQ(memory.segments, expected_memory.segments);
            EXPECT_EQ(memory.pending, expected_memory.pending);
        }
    }
}

TEST(InfiniAttention, AnySplitIntoCallsIsTheSame) {
    Context context(1);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        InfiniInputs in = filled();
        in.narrow(dtype);
        const double tolerance = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 8e-3;
        for (const InfiniOptions& o : option_list(in, 5)) {
            InfiniMemory whole_memory;
            const Tensor whole = in_calls(context, in, o, {}, whole_memory);
            EXPECT_EQ(whole_memory.segments, 4);
            EXPECT_EQ(whole_memory.pending, 3);
            const std::vector<std::vector<std::int64_t>> splits = {
                std::vector<std::int64_t>(22, 1), {5, 5, 5, 5}, {2, 7, 0, 1, 9}, {13}, {4, 2, 4, 2, 4, 2, 4}};
            for (const std::vector<std::int64_t>& split : splits) {
                InfiniMemory memory;
                EXPECT_LE(distance(in_calls(context, in, o, split, memory), whole), tolerance) << split.size();
                EXPECT_EQ(memory.segments, whole_memory.segments);
                EXPECT_EQ(memory.pending, whole_memory.pending);
                // The update sees whole segments, however they arrived.
                EXPECT_TRUE(same_bits(memory.m, whole_memory.m));
                EXPECT_TRUE(same_bits(memory.z, whole_memory.z));
            }
        }
    }
}

TEST(InfiniAttention, MemoryIsAValueOfFixedSize) {
    Context context(1);
    InfiniInputs in = filled();
    in.narrow(DType::f32);
    const InfiniOptions o{.segment = 4};
    InfiniMemory memory;
    in_calls(context, in, o, {}, memory);
    const std::size_t bytes = memory.bytes();
    InfiniMemory copy = memory.clone();
    for (int n = 0; n < 5; ++n) { in_calls(context, in, o, {3}, memory); }
    EXPECT_EQ(memory.bytes(), bytes);
    // What followed left the copy alone, and from it the same follows.
    EXPECT_EQ(copy.segments, 5);
    InfiniMemory again = copy.clone();
    EXPECT_TRUE(same_bits(in_calls(context, in, o, {}, copy), in_calls(context, in, o, {}, again)));
}

TEST(InfiniAttention, RepeatedPairComesBack) {
    Context context(1);
    // One pair (k, v = 3) in segments of one token, and a gate that takes the memory alone.
    const double key[2] = {0.3, -0.8};
    const double three = 3;
    const double open = std::numeric_limits<double>::infinity();
    const double expected[2][6] = {{0, 3, 3, 3, 3, 3}, {0, 3, 1.5, 1.5, 1.5, 1.5}};
    for (const MemoryUpdate update : {MemoryUpdate::linear, MemoryUpdate::delta}) {
        InfiniMemory memory;
        for (int s = 0; s < 6; ++s) {
            double out = -1;
            const View k(key, {1, 1, 1, 2});
            infini_attend(context, k, k, View(&three, {1, 1, 1, 1}), View(&open, {1}), MutableView(&out, {1, 1, 1, 1}),
                          memory, {.segment = 1, .update = update, .first_segment = FirstSegment::gated});
            EXPECT_NEAR(out, expected[static_cast<int>(update)][s], 1e-12) << s;
        }
    }
}

TEST(InfiniAttention, OneSegmentIsCausalAttention) {
    Context context(1);
    InfiniInputs in = filled();
    in.narrow(DType::f32);
    Tensor causal = in.out_like(DType::f32);
    AttentionOptions attention;
    attention.causal = true;
    attend(context, in.q, in.k, in.v, causal, attention);
    InfiniMemory memory;
    EXPECT_TRUE(same_bits(in_calls(context, in, {.segment = in.T}, {}, memory), causal));
    EXPECT_EQ(memory.segments, 1);
    // Gated: the empty memory contributes 0, so (1 - sigmoid(gate)) of it.
    InfiniMemory other;
    const Tensor gated = in_calls(context, in, {.segment = 100, .first_segment = FirstSegment::gated}, {}, other);
    for (std::int64_t n = 0; n < causal.elements(); ++n) {
        const float beta = in.gates.as<float>()[n / in.E / in.T % in.H];
        EXPECT_NEAR(gated.as<float>()[n], causal.as<float>()[n] / (1 + std::exp(beta)), 1e-6);
    }
}

TEST(InfiniAttention, GatesAtTheirEnds) {
    Context context(1);
    InfiniInputs in = filled();
    // Closed: segments by themselves.
    std::fill_n(in.gates.as<double>(), in.H, -std::numeric_limits<double>::infinity());
    InfiniMemory memory;
    const Tensor closed = in_calls(context, in, {.segment = 6}, {}, memory);
    for (std::int64_t begin = 0; begin < in.T; begin += 6) {
        const auto part = [&](const View& x) { return Tensor::copy_of(x.slice(2, begin, std::min(in.T, begin + 6))); };
        Tensor local = part(closed);
        AttentionOptions attention;
        attention.causal = true;
        attend(context, part(in.q), part(in.k), part(in.v), local, attention);
        EXPECT_LE(distance(part(closed), local), 1e-13);
    }
    // Open, one-token segments, linear: linear attention that leaves out the token itself.
    std::fill_n(in.gates.as<double>(), in.H, std::numeric_limits<double>::infinity());
    InfiniMemory tokens;
    const Tensor open = in_calls(context, in, {.segment = 1, .first_segment = FirstSegment::gated}, {}, tokens);
    Tensor s(DType::f64, {in.B, in.G, in.D, in.E});
    Tensor z(DType::f64, {in.B, in.G, in.D});
    Tensor one(DType::f64, {in.B, in.H, 1, in.E});
    for (std::int64_t t = 0; t < in.T; ++t) {
        const auto token = [t](const View& x) { return x.slice(2, t, t + 1); };
        linear_attend(context, token(in.q), token(in.k).slice(2, 0, 0), token(in.v).slice(2, 0, 0), one,
                      {.causal = false, .epsilon = 0}, {s, z});
        EXPECT_LE(distance(Tensor::copy_of(token(open)), one), 1e-12) << t;
        Tensor unused(DType::f64, {in.B, in.H, 1, in.E});
        linear_attend(context, token(in.q), token(in.k), token(in.v), {.out = unused, .final = {s, z}}, {}, {s, z});
    }
    // A memory of one pair says its value to any query.
    InfiniMemory pair;
    const auto range = [](const View& x, std::int64_t begin, std::int64_t end) { return x.slice(2, begin, end); };
    const InfiniOptions single{.segment = 1};
    infini_attend(context, range(in.q, 0, 1), range(in.k, 0, 1), range(in.v, 0, 1), in.gates, one, pair, single);
    infini_attend(context, range(in.q, 1, 2), range(in.k, 1, 2), range(in.v, 1, 2), in.gates, one, pair, single);
    for (std::int64_t h = 0; h < in.H; ++h) {
        const double stored = in.v.as<double>()[h / 2 * in.T * in.E];
        EXPECT_NEAR(one.as<double>()[h * in.E], stored, 1e-12);
    }
}

TEST(InfiniAttention, SameBitsForAnyNumberOfThreads) {
    InfiniInputs in = filled({.B = 1, .H = 2, .G = 1, .T = 600, .D = 32, .E = 32});
    in.narrow(DType::f32);
    const InfiniOptions o{.segment = 256, .update = MemoryUpdate::delta};
    Context one(1);
    InfiniMemory memory;
    const Tensor expected = in_calls(one, in, o, {}, memory);
    for (const int threads : {2, 7}) {
        Context several(threads);
        InfiniMemory other;
        EXPECT_TRUE(same_bits(in_calls(several, in, o, {}, other), expected)) << threads;
        EXPECT_TRUE(same_bits(other.m, memory.m)) << threads;
    }
}

}  // namespace
}  // namespace heed
