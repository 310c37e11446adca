/// Operations other than attention, each on every kernel that its list has for this machine: the same poisoned memory,
/// layouts, thread counts and idea of a tolerance. An operation joins by a row in operations(); its kernels come from
/// the library.

#include <gtest/gtest.h>

#include <heed/explain.h>
#include <heed/linear.h>
#include <heed/linear_attention.h>
#include <heed/log_decay.h>
#include <heed/matmul.h>
#include <heed/merge.h>
#include <heed/norm.h>
#include <heed/positions.h>
#include <heed/rotary.h>

#include "conformance/operations.h"
#include "conformance/problem.h"
#include "conformance/tolerance.h"
#include "support/random.h"
#include "support/sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>

namespace heed::conformance {
namespace {

void add_rope(std::vector<Operation>& all) {
    for (const Pairing pairing : {Pairing::halves, Pairing::interleaved}) {
        for (const auto& [rotary, size] : {std::pair{64, 64}, std::pair{34, 47}, std::pair{2, 3}}) {
            const Shape shape{2, 3, 37, size};
            const RopeTable table = rope_table({.size = rotary, .pairing = pairing});
            const std::string name = "rope " + std::to_string(rotary) + " of " + std::to_string(size);
            all.push_back({name, {shape}, {shape}, [=](Context& c, const Views& in, const Targets& out) {
                               rope(c, in[0], out[0], table, {.first = 1000});
                           }});
            all.push_back({name + " backward", {shape}, {shape}, [=](Context& c, const Views& in, const Targets& out) {
                               rope_backward(c, in[0], out[0], table, {.first = 1000});
                           }});
        }
    }
}

void add_rotate(std::vector<Operation>& all) {
    for (const Pairing pairing : {Pairing::halves, Pairing::interleaved}) {
        const Shape shape{2, 3, 37, 21}, table{37, 8};
        for (const bool back : {false, true}) {
            all.push_back({std::string("rotate") + (back ? " backward" : ""),
                           {shape, table, table},
                           {shape},
                           [=](Context& c, const Views& in, const Targets& out) {
                               const Rotations by{.cosine = in[1], .sine = in[2], .pairing = pairing};
                               back ? rotate_backward(c, in[0], out[0], by) : rotate(c, in[0], out[0], by);
                           }});
        }
    }
}

void add_matmul(std::vector<Operation>& all) {
    for (const auto& [m, n, k] : {std::array{1, 1, 1}, {3, 5, 70}, {17, 33, 300}, {64, 48, 129}, {140, 130, 64}}) {
        all.push_back(
            {"matmul " + to_string(Shape{m, n, k}),
             {{2, m, k}, {2, k, n}},
             {{2, m, n}},
             [](Context& c, const Views& in, const Targets& out) { matmul(c, in[0], in[1], out[0], {.alpha = 0.5}); },
             8.0 + k});
    }
}

/// More rows than a block has, few, and one; a depth of several blocks; sizes that fill no vector and no tile.
void add_linear(std::vector<Operation>& all) {
    for (const auto& [rows, in, out] : {std::array{1, 1, 1},
                                        {3, 70, 40},
                                        {16, 64, 33},
                                        {17, 300, 33},
                                        {70, 1100, 130},
                                        {33, 31, 300},
                                        {300, 70, 150}}) {
        all.push_back({"linear " + to_string(Shape{rows, in, out}),
                       {{rows, in}, {out, in}, {out}},
                       {{rows, out}},
                       [](Context& c, const Views& x, const Targets& to) {
                           linear(c, x[0], x[1], to[0], {.bias = x[2], .activation = Activation::gelu});
                       },
                       8.0 + in});
    }
}

void add_merge(std::vector<Operation>& all) {
    const Shape out{2, 3, 70, 19}, lse{2, 3, 70};
    const auto parts_of = [](const Views& in) {
        return std::vector<PartialResult>{{in[0], in[3]}, {in[1], in[4]}, {in[2], in[5]}};
    };
    all.push_back({"merge",
                   {out, out, out, lse, lse, lse},
                   {out, lse},
                   [=](Context& c, const Views& in, const Targets& to) { merge(c, parts_of(in), to[0], to[1]); },
                   8,
                   {3, 4, 5},
                   {1}});
    all.push_back({"merge backward",
                   {out, out, out, lse, lse, lse, out, lse},
                   {out, out, out, lse, lse, lse},
                   [=](Context& c, const Views& in, const Targets& to) {
                       const std::vector<PartialGradient> gradients = {{to[0], to[3]}, {to[1], to[4]}, {to[2], to[5]}};
                       merge_backward(c, parts_of(in), in[6], gradients, in[7]);
                   },
                   64,
                   {3, 4, 5, 7},
                   {3, 4, 5}});
}

void add_linear_attention(std::vector<Operation>& all) {
    for (const bool causal : {true, false}) {
        for (const std::int64_t size : {8, 35}) {
            const Shape q{2, 4, 90, size}, k{2, 2, 90, size};
            const std::string name = std::string("linear_attend ") + (causal ? "causal " : "") + std::to_string(size);
            all.push_back({name,
                           {q, k, k},
                           {q},
                           [=](Context& c, const Views& in, const Targets& out) {
                               linear_attend(c, in[0], in[1], in[2], out[0], {.causal = causal});
                           },
                           512});
            all.push_back({name + " backward",
                           {q, k, k, q},
                           {q, k, k},
                           [=](Context& c, const Views& in, const Targets& out) {
                               linear_attend_backward(c, {.q = in[0], .k = in[1], .v = in[2], .dout = in[3]},
                                                      {.dq = out[0], .dk = out[1], .dv = out[2]}, {.causal = causal});
                           },
                           2048});
        }
    }
}

void add_norms(std::vector<Operation>& all) {
    for (const std::int64_t columns : {7, 64, 333}) {
        const Shape x{2, 9, columns}, row{columns};
        all.push_back({"layer_norm " + std::to_string(columns),
                       {x, row, row},
                       {x},
                       [](Context& c, const Views& in, const Targets& out) {
                           layer_norm(c, in[0], out[0], {.weight = in[1], .bias = in[2]});
                       },
                       256});
        all.push_back(
            {"rms_norm " + std::to_string(columns),
             {x, row},
             {x},
             [](Context& c, const Views& in, const Targets& out) { rms_norm(c, in[0], out[0], {.weight = in[1]}); },
             256});
        all.push_back({"layer_norm backward " + std::to_string(columns),
                       {x, x, row},
                       {x, row, row},
                       [](Context& c, const Views& in, const Targets& out) {
                           layer_norm_backward(c, in[0], in[1], {.dx = out[0], .dweight = out[1], .dbias = out[2]},
                                               {.weight = in[2]});
                       },
                       2048});
    }
}

/// Fixed gates for any call: decays and shares at which 90 tokens of normal numbers neither vanish nor explode.
struct FixedGates {
    Tensor log_decay, beta;

    FixedGates(std::int64_t heads, std::int64_t tokens, std::int64_t size)
        : log_decay(DType::f32, {2, heads, tokens, size}), beta(DType::f32, {2, heads, tokens}) {
        testing::Random random(7);
        const auto uniform = [&] { return static_cast<float>(std::exp(-std::abs(random.normal()))); };
        for (std::int64_t n = 0; n < log_decay.elements(); ++n) { log_decay.as<float>()[n] = -0.5F * uniform(); }
        for (std::int64_t n = 0; n < beta.elements(); ++n) {
            beta.as<float>()[n] = uniform() / static_cast<float>(size);
        }
    }
    /// The same numbers where a context computes.
    const FixedGates& on(Device device) const {
        if (device.kind == DeviceKind::cpu) { return *this; }
        if (there == nullptr) { there = std::make_shared<FixedGates>(*this, device); }
        return *there;
    }
    FixedGates(const FixedGates& from, Device device)
        : log_decay(from.log_decay.to(device)), beta(from.beta.to(device)) {}
    LinearAttentionOptions options(UpdateRule rule, bool each_row) const {
        LinearAttentionOptions o{.feature = FeatureMap::identity, .normalise = false, .scale = 0.2};
        o.rule = rule;
        const View all = log_decay;
        o.log_decay = each_row ? all
                               : View(all.dtype(), all.data(), Shape{all.extent(0), all.extent(1), all.extent(2)},
                                      Shape{all.stride(0), all.stride(1), all.stride(2)}, all.device());
        if (rule == UpdateRule::delta) { o.beta = beta; }
        return o;
    }

private:
    mutable std::shared_ptr<FixedGates> there;
};

void add_gated_linear_attention(std::vector<Operation>& all) {
    for (const UpdateRule rule : {UpdateRule::sum, UpdateRule::delta}) {
        for (const bool each_row : {false, true}) {
            for (const auto& [heads, size] : {std::pair{2, 8}, std::pair{4, 35}}) {
                const Shape q{2, 4, 90, size}, k{2, 2, 90, size}, states{2, heads, size, size};
                const auto gates = std::make_shared<const FixedGates>(heads, 90, size);
                const auto options = [=](const Context& c) { return gates->on(c.device()).options(rule, each_row); };
                const Shape decays = gates->options(rule, each_row).log_decay.shape();
                const std::string name = std::string("linear_attend ") +
                                         (rule == UpdateRule::delta ? "delta " : "gated ") +
                                         (each_row ? "each row " : "") + std::to_string(size);
                all.push_back({name,
                               {q, k, k, states},
                               {q, states},
                               [=](Context& c, const Views& in, const Targets& out) {
                                   linear_attend(c, in[0], in[1], in[2], {.out = out[0], .final = {out[1], {}}},
                                                 options(c), {in[3], {}});
                               },
                               512,
                               {3},
                               {1}});
                all.push_back(
                    {name + " backward",
                     {q, k, k, q, states, states},
                     {q, k, k, states, decays},
                     [=](Context& c, const Views& in, const Targets& out) {
                         const LinearAttentionGradients gradients{
                             .dq = out[0], .dk = out[1], .dv = out[2], .dinitial = {out[3], {}}, .dlog_decay = out[4]};
                         linear_attend_backward(c,
                                                {.q = in[0],
                                                 .k = in[1],
                                                 .v = in[2],
                                                 .initial = {in[4], {}},
                                                 .dout = in[3],
                                                 .dfinal = {in[5], {}}},
                                                gradients, options(c));
                     },
                     2048,
                     {4, 5},
                     {3, 4}});
            }
        }
    }
}

void add_log_decay(std::vector<Operation>& all) {
    const Shape x{3, 17, 12}, rate{4};
    all.push_back({"log_decay", {x, rate}, {x}, [](Context& c, const Views& in, const Targets& out) {
                       log_decay(c, in[0], in[1], out[0]);
                   }});
    all.push_back({"log_decay backward", {x, rate, x}, {x, rate}, [](Context& c, const Views& in, const Targets& out) {
                       log_decay_backward(c, in[0], in[1], in[2], out[0], out[1]);
                   }});
}

}  // namespace

std::vector<Operation> operations() {
    std::vector<Operation> all;
    add_rope(all);
    add_rotate(all);
    add_matmul(all);
    add_linear(all);
    add_merge(all);
    add_linear_attention(all);
    add_norms(all);
    add_gated_linear_attention(all);
    add_log_decay(all);
    return all;
}

bool stays_wide(const std::vector<std::size_t>& list, std::size_t n) {
    return std::find(list.begin(), list.end(), n) != list.end();
}

std::string distance_from(const Operation& o, DType dtype, const std::vector<double>& got,
                          const std::vector<double>& expected, std::size_t output) {
    double largest = 0;
    for (const double x : expected) { largest = std::max(largest, std::abs(x)); }
    const Tolerance t = tolerance_of(stays_wide(o.wide_outputs, output) && dtype != DType::f64 ? DType::f32 : dtype);
    const double sums = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
    const double allowed = largest * (t.storage_units * t.storage_epsilon + o.sum_units * sums) + t.tiny;
    for (std::size_t n = 0; n < expected.size(); ++n) {
        if (!(std::abs(got[n] - expected[n]) <= allowed)) {
            return "output " + std::to_string(output) + " [" + std::to_string(n) + "] is " + std::to_string(got[n]) +
                   ", expected " + std::to_string(expected[n]) + " within " + std::to_string(allowed);
        }
    }
    return {};
}

namespace {

/// Tensors of one call.
struct Call {
    std::deque<Placed> inputs, outputs;

    Call(const Operation& o, DType dtype, std::string_view layout) {
        const auto type = [&](bool wide) { return wide && dtype != DType::f64 ? DType::f32 : dtype; };
        for (std::size_t n = 0; n < o.inputs.size(); ++n) {
            inputs.emplace_back(type(stays_wide(o.wide_inputs, n)), o.inputs[n], layout);
        }
        for (std::size_t n = 0; n < o.outputs.size(); ++n) {
            outputs.emplace_back(type(stays_wide(o.wide_outputs, n)), o.outputs[n], layout);
        }
    }
    void run(const Operation& o, Context& context) {
        Views in;
        for (const Placed& x : inputs) { in.push_back(x.view()); }
        Targets out;
        for (Placed& x : outputs) { out.push_back(x.mutable_view()); }
        o.call(context, in, out);
    }
    std::vector<std::vector<double>> results() const {
        std::vector<std::vector<double>> all;
        for (const Placed& x : outputs) { all.push_back(x.numbers()); }
        return all;
    }
};

void fill(Call& call, std::uint64_t seed) {
    testing::Random random(seed);
    for (Placed& x : call.inputs) {
        for (std::int64_t n = 0; n < x.view().shape().elements(); ++n) { x.store(n, random.normal()); }
    }
}

/// The same numbers, as the type of `from` rounded them.
void copy_inputs(const Call& from, Call& to) {
    for (std::size_t n = 0; n < from.inputs.size(); ++n) {
        for (std::int64_t e = 0; e < from.inputs[n].view().shape().elements(); ++e) {
            to.inputs[n].store(e, from.inputs[n].load(e));
        }
    }
}

std::vector<std::string> kernels_that_fit(const Operation& o, Context& context, Call& call) {
    const std::vector<Explanation> explained = explain(context, [&](Context& dry) { call.run(o, dry); });
    EXPECT_EQ(explained.size(), 1U) << o.name;
    std::vector<std::string> names;
    for (const Explanation& e : explained) {
        for (const KernelVerdict& verdict : e.verdicts) {
            if (verdict.fits) { names.push_back(verdict.kernel); }
        }
    }
    return names;
}

/// Where cases are thinned, every operation keeps one of its 16 pairs of type and layout at least; an odd step visits
/// all pairs in turn.
int step_of_sample() { return std::min(testing::test_stride() | 1, 15); }

TEST(Operations, EveryKernelEveryTypeAndLayout) {
    Context context(3), alone(1), many(7);
    std::map<std::string, int> ran;
    std::uint64_t seed = 0;
    testing::Sample sample(step_of_sample());
    for (const Operation& o : operations()) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
            for (const std::string_view layout : {"plain", "inside", "every-other", "mirrored"}) {
                if (!sample.takes()) { continue; }
                SCOPED_TRACE(o.name + " " + std::string(name_of(dtype)) + " " + std::string(layout));
                Call inputs(o, dtype, layout), exact(o, DType::f64, "plain");
                fill(inputs, ++seed);
                copy_inputs(inputs, exact);
                exact.run(o, alone);
                const auto expected = exact.results();
                for (const std::string& kernel : kernels_that_fit(o, context, inputs)) {
                    Call call(o, dtype, layout), again(o, dtype, layout), crowded(o, dtype, layout);
                    for (Call* each : {&call, &again, &crowded}) { copy_inputs(inputs, *each); }
                    for (Context* each : {&context, &alone, &many}) { each->set_kernel(kernel); }
                    call.run(o, context);
                    again.run(o, alone);
                    crowded.run(o, many);
                    for (Context* each : {&context, &alone, &many}) { each->set_kernel(""); }
                    for (std::size_t n = 0; n < expected.size(); ++n) {
                        EXPECT_EQ(distance_from(o, dtype, call.results()[n], expected[n], n), "") << kernel;
                        EXPECT_EQ(call.results()[n], again.results()[n]) << kernel << ": one thread";
                        EXPECT_EQ(call.results()[n], crowded.results()[n]) << kernel << ": seven threads";
                        EXPECT_TRUE(call.outputs[n].surroundings_untouched()) << kernel << ": written around " << n;
                    }
                    ++ran[kernel];
                    if (HasFailure()) { return; }
                }
            }
        }
    }
    for (const auto& [kernel, count] : ran) { std::printf("%s: %d calls\n", kernel.c_str(), count); }
    EXPECT_GE(ran.size(), 2U);
    EXPECT_GE(ran["reference"], static_cast<int>(operations().size()));
}

/// What explain() promises: arguments are checked, nothing is written.
TEST(Operations, ExplainingComputesNothing) {
    Context context(2);
    for (const Operation& o : operations()) {
        Call call(o, DType::f32, "inside");
        fill(call, 1);
        EXPECT_FALSE(kernels_that_fit(o, context, call).empty()) << o.name;
        for (const Placed& out : call.outputs) {
            for (const double x : out.numbers()) { ASSERT_TRUE(std::isnan(x)) << o.name; }
        }
    }
}

}  // namespace
}  // namespace heed::conformance
