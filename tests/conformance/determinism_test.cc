/// The same bits for any number of threads, any neighbours in the batch, any number of calls.

#include <gtest/gtest.h>

#include "conformance/run.h"
#include "support/random.h"

#include <bit>
#include <cstdlib>
#include <cstring>

namespace heed::conformance {
namespace {

constexpr int every = 12;

/// Bit for bit, NaN included: both came from stores of the same type, widened to double without loss.
std::string first_difference(const Results& a, const Results& b) {
    for (int n = 0; n < Results::count; ++n) {
        if (a[n].size() != b[n].size()) { return std::string(Results::names[n]) + " differs in size"; }
        for (std::size_t e = 0; e < a[n].size(); ++e) {
            if (std::bit_cast<std::uint64_t>(a[n][e]) != std::bit_cast<std::uint64_t>(b[n][e])) {
                return std::string(Results::names[n]) + "[" + std::to_string(e) + "]: " + std::to_string(a[n][e]) +
                       " and " + std::to_string(b[n][e]);
            }
        }
    }
    return {};
}

TEST(Determinism, SameBitsForOneTwoAndSevenThreads) {
    Context one(1);
    Context two(2);
    Context seven(7);
    for (const std::string& kernel : kernels_to_test()) {
        for (const Case& c : cases_to_test(every)) {
            const Problem problem(c);
            if (!fits(problem, kernel)) { continue; }
            const Results alone = run(one, problem, kernel)->results();
            EXPECT_EQ(first_difference(alone, run(two, problem, kernel)->results()), "")
                << kernel << " " << c.describe();
            EXPECT_EQ(first_difference(alone, run(seven, problem, kernel)->results()), "")
                << kernel << " " << c.describe();
            EXPECT_EQ(first_difference(alone, run(one, problem, kernel)->results()), "")
                << kernel << ", called again, " << c.describe();
        }
    }
}

TEST(Determinism, DropoutOfNothingIsNoDropout) {
    Context context(2);
    for (const std::string& kernel : kernels_to_test()) {
        for (const Case& c : cases_to_test(every, 5)) {
            Problem problem(c);
            if (!fits(problem, kernel)) { continue; }
            problem.options.dropout = {.p = 0, .seed = 12345, .offset = 6};
            const Results with = run(context, problem, kernel)->results();
            problem.options.dropout = {};
            EXPECT_EQ(first_difference(with, run(context, problem, kernel)->results()), "")
                << kernel << " " << c.describe();
        }
    }
}

/// What of a problem concerns one batch entry or packed sequence: views of it alone.
struct Alone {
    View q, k, v, dout, dlse;
    AttentionOptions options;
    Tensor cu_q, cu_k;

    Alone(const Problem& p, std::int64_t n) : options(p.options) {
        const Piece& piece = p.pieces[static_cast<std::size_t>(n)];
        const auto entry = [&](const View& view, int axis) {
            return view && view.extent(axis) != 1 ? view.slice(axis, n, n + 1) : view;
        };
        options.allow = entry(p.options.allow, 0);
        options.bias = entry(p.options.bias, 0);
        options.dropout.keep = entry(p.options.dropout.keep, 0);
        if (p.options.alibi_slopes && p.options.alibi_slopes.rank() == 2) {
            options.alibi_slopes = p.options.alibi_slopes.slice(0, n, n + 1);
        }
        if (p.packed) {
            const auto queries = [&](const View& x, int axis) {
                return x ? x.slice(axis, piece.query_begin, piece.query_begin + piece.queries) : x;
            };
            const auto keys = [&](const View& x, int axis) {
                return x ? x.slice(axis, piece.key_begin, piece.key_begin + piece.keys) : x;
            };
            q = queries(p.q.view(), 2);
            dout = queries(p.dout.view(), 2);
            dlse = queries(p.dlse.view(), 2);
            k = keys(p.k.view(), 2);
            v = keys(p.v.view(), 2);
            options.query_positions = queries(p.options.query_positions, 1);
            options.key_positions = keys(p.options.key_positions, 1);
            cu_q = Tensor(DType::i64, {2});
            cu_k = Tensor(DType::i64, {2});
            cu_q.as<std::int64_t>()[1] = piece.queries;
            cu_k.as<std::int64_t>()[1] = piece.keys;
            options.cu_seqlens_q = std::as_const(cu_q).view();
            options.cu_seqlens_k = std::as_const(cu_k).view();
            // As long as the longest sequence of a call, which alone is this one.
            const auto cut = [&](View& x) {
                if (x && x.extent(2) > 1) { x = x.slice(2, 0, piece.queries); }
                if (x && x.extent(3) > 1) { x = x.slice(3, 0, piece.keys); }
            };
            cut(options.allow);
            cut(options.bias);
            cut(options.dropout.keep);
        } else {
            const auto slice = [&](const View& x) { return x ? x.slice(0, n, n + 1) : x; };
            q = slice(p.q.view());
            k = slice(p.k.view());
            v = slice(p.v.view());
            dout = slice(p.dout.view());
            dlse = slice(p.dlse.view());
            options.query_lengths = slice(p.options.query_lengths);
            options.key_lengths = slice(p.options.key_lengths);
            options.query_positions = entry(p.options.query_positions, 0);
            options.key_positions = entry(p.options.key_positions, 0);
        }
    }
};

/// Does any option know its batch entry by number? Those give another entry other numbers by design.
bool counts_batch_entries(const Problem& p) {
    const std::string_view pattern = p.c[Axis::pattern];
    const bool by_batch = pattern == "padding" || pattern == "prefix|causal" || pattern == "document&causal";
    return by_batch || (p.options.dropout.p > 0 && !p.options.dropout.keep);
}

TEST(Determinism, NeighboursInTheBatchChangeNothing) {
    Context context(2);
    int compared = 0;
    for (const std::string& kernel : kernels_to_test()) {
        if (kernel.find('/') != std::string::npos) { continue; }  // an entry alone may be another row's
        for (const Case& c : cases_to_test(every / 2, 3)) {
            const Problem p(c);
            if (p.N < 2 || counts_batch_entries(p) || !fits(p, kernel)) { continue; }
            const auto together = run(context, p, kernel);
            const std::int64_t n = c.number % p.N;
            const Piece& piece = p.pieces[static_cast<std::size_t>(n)];
            Alone alone(p, n);
            alone.options.kernel = kernel;
            Tensor out(p.out_dtype, {1, p.H, alone.q.extent(2), p.E});
            Tensor lse(p.lse_dtype, {1, p.H, alone.q.extent(2)});
            Tensor dq(p.out_dtype, alone.q.shape());
            Tensor dk(p.out_dtype, alone.k.shape());
            Tensor dv(p.out_dtype, alone.v.shape());
            attend(context, alone.q, alone.k, alone.v, {.out = out, .lse = lse}, alone.options);
            if (!forward_only()) {
                attend_backward(context,
                                {.q = alone.q,
                                 .k = alone.k,
                                 .v = alone.v,
                                 .out = out,
                                 .lse = lse,
                                 .dout = alone.dout,
                                 .dlse = alone.dlse},
                                {.dq = dq, .dk = dk, .dv = dv}, alone.options);
            }
            if (out_without_lse(p)) { attend(context, alone.q, alone.k, alone.v, out, alone.options); }
            const auto expect_same = [&](const char* name, const Tensor& got, const View& whole, std::int64_t begin) {
                const View part = p.packed ? whole.slice(2, begin, begin + got.shape()[2]) : whole.slice(0, n, n + 1);
                const Tensor wanted = Tensor::copy_of(part);
                ASSERT_TRUE(wanted.shape() == got.shape());
                EXPECT_TRUE(got.bytes() == 0 || std::memcmp(got.data(), wanted.data(), got.bytes()) == 0)
                    << kernel << ": " << name << " of entry " << n << ", " << c.describe();
            };
            expect_same("out", out, together->out.view(), piece.query_begin);
            expect_same("lse", lse, together->lse.view(), piece.query_begin);
            if (!forward_only()) {
                expect_same("dq", dq, together->dq.view(), piece.query_begin);
                expect_same("dk", dk, together->dk.view(), piece.key_begin);
                expect_same("dv", dv, together->dv.view(), piece.key_begin);
            }
            ++compared;
        }
    }
    // One case asked for by number may not be one with neighbours.
    if (std::getenv("HEED_CASE") == nullptr) { EXPECT_GT(compared, 0); }
}

/// Shapes long enough that a kernel divides the keys, or the queries, between tasks.
TEST(Determinism, SameBitsForLongSequences) {
    struct Long {
        std::int64_t H, G, T, S, D;
        bool causal;
    };
    for (const Long& s :
         {Long{4, 2, 1, 4099, 64, true}, Long{2, 1, 3, 2500, 33, false}, Long{2, 1, 513, 777, 64, true}}) {
        testing::Random random(99);
        const Tensor q = testing::random_tensor(random, DType::f32, {2, s.H, s.T, s.D});
        const Tensor k = testing::random_tensor(random, DType::f32, {2, s.G, s.S, s.D});
        const Tensor v = testing::random_tensor(random, DType::f32, {2, s.G, s.S, s.D});
        for (const std::string& kernel : kernels_to_test()) {
            if (kernel == "reference" || kernel.find('/') != std::string::npos) { continue; }  // one thread, one order
            std::vector<Tensor> first;
            for (const int threads : {1, 2, 7}) {
                Context context(threads);
                std::vector<Tensor> now;
                for (const Shape& shape : {q.shape(), Shape{2, s.H, s.T}, q.shape(), k.shape(), v.shape()}) {
                    now.emplace_back(DType::f32, shape);
                }
                const AttentionOptions options{.causal = s.causal, .kernel = kernel};
                attend(context, q, k, v, {.out = now[0], .lse = now[1]}, options);
                if (!forward_only()) {
                    attend_backward(context, {.q = q, .k = k, .v = v, .out = now[0], .lse = now[1], .dout = q},
                                    {.dq = now[2], .dk = now[3], .dv = now[4]}, options);
                }
                if (first.empty()) {
                    first = std::move(now);
                    continue;
                }
                for (std::size_t n = 0; n < now.size(); ++n) {
                    EXPECT_EQ(std::memcmp(now[n].data(), first[n].data(), now[n].bytes()), 0)
                        << kernel << ": result " << n << " with " << threads << " threads, T = " << s.T;
                }
                // The second entry alone.
                Tensor out(DType::f32, {1, s.H, s.T, s.D});
                attend(context, std::as_const(q).view().slice(0, 1, 2), std::as_const(k).view().slice(0, 1, 2),
                       std::as_const(v).view().slice(0, 1, 2), out, options);
                EXPECT_EQ(std::memcmp(out.data(), first[0].as<float>() + out.elements(), out.bytes()), 0)
                    << kernel << ": entry 1 alone, T = " << s.T;
            }
        }
    }
}

}  // namespace
}  // namespace heed::conformance
