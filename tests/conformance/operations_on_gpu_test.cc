/// The table of operations on a GPU beside the reference in double on the CPU: every type and layout, poisoned memory
/// around what is written, and the same bits twice. Operations that the GPU has no kernel for are listed by name.

#include <gtest/gtest.h>

#include <heed/error.h>
#include <heed/infini_attention.h>
#include <heed/linear_attention.h>
#include <heed/mla.h>

#include "conformance/mirror.h"
#include "conformance/operations.h"
#include "support/random.h"

#include <array>
#include <cstdio>
#include <deque>
#include <set>

namespace heed::conformance {
namespace {

/// Tensors of one call, on the host.
struct GpuCall {
    std::deque<Placed> inputs, outputs;

    GpuCall(const Operation& o, DType dtype, std::string_view layout) {
        const auto type = [&](bool wide) { return wide && dtype != DType::f64 ? DType::f32 : dtype; };
        for (std::size_t n = 0; n < o.inputs.size(); ++n) {
            inputs.emplace_back(type(stays_wide(o.wide_inputs, n)), o.inputs[n], layout);
        }
        for (std::size_t n = 0; n < o.outputs.size(); ++n) {
            outputs.emplace_back(type(stays_wide(o.wide_outputs, n)), o.outputs[n], layout);
        }
    }
    void run_here(const Operation& o, Context& context) {
        Views in;
        for (const Placed& x : inputs) { in.push_back(x.view()); }
        Targets out;
        for (Placed& x : outputs) { out.push_back(x.mutable_view()); }
        o.call(context, in, out);
    }
    /// False where no kernel of the GPU takes the call.
    bool run_there(const Operation& o, Context& gpu) {
        Mirror mirror;
        Views in;
        for (const Placed& x : inputs) { in.push_back(mirror.input(x)); }
        Targets out;
        for (Placed& x : outputs) { out.push_back(mirror.output(x)); }
        try {
            o.call(gpu, in, out);
        } catch (const Error& error) {
            if (std::string(error.what()).find("a kernel that fits") != std::string::npos) { return false; }
            throw;
        }
        gpu.synchronise();
        mirror.bring_back();
        return true;
    }
};

void check_operation(const Operation& o, Context& cpu, Context& gpu, DType dtype, std::string_view layout,
                     std::uint64_t seed, std::set<std::string>& without) {
    SCOPED_TRACE(o.name + " " + std::string(name_of(dtype)) + " " + std::string(layout));
    GpuCall call(o, dtype, layout), again(o, dtype, layout), exact(o, DType::f64, "plain");
    testing::Random random(seed);
    for (std::size_t n = 0; n < call.inputs.size(); ++n) {
        for (std::int64_t e = 0; e < call.inputs[n].view().shape().elements(); ++e) {
            call.inputs[n].store(e, random.normal());
            const double rounded = call.inputs[n].load(e);
            again.inputs[n].store(e, rounded);
            exact.inputs[n].store(e, rounded);
        }
    }
    if (!call.run_there(o, gpu)) {
        without.insert(o.name);
        return;
    }
    again.run_there(o, gpu);
    exact.run_here(o, cpu);
    for (std::size_t n = 0; n < call.outputs.size(); ++n) {
        EXPECT_EQ(distance_from(o, dtype, call.outputs[n].numbers(), exact.outputs[n].numbers(), n), "");
        EXPECT_EQ(call.outputs[n].numbers(), again.outputs[n].numbers()) << "another run gave other bits";
        EXPECT_TRUE(call.outputs[n].surroundings_untouched()) << "written around " << n;
    }
}

constexpr std::array all_layouts = {std::string_view("plain"), std::string_view("inside"),
                                    std::string_view("every-other"), std::string_view("mirrored")};

// ---- What is made of several operations, and options that the table does not have ----------------------------------

const std::vector<double> fixed_decays = {0.5, 0.9, 1, 0.97};
const std::vector<std::int64_t> fixed_lengths = {90, 37};

/// A state for each query head, each with its decay, and sequences that end early.
LinearAttentionOptions decaying(bool lengths) {
    LinearAttentionOptions options;
    options.decay = View(fixed_decays.data(), {4});
    if (lengths) { options.key_lengths = View(fixed_lengths.data(), {2}); }
    return options;
}

void add_decaying(std::vector<Operation>& all) {
    const Shape q{2, 4, 90, 7}, k{2, 2, 90, 7}, s{2, 4, 7, 7}, z{2, 4, 7};
    for (const bool lengths : {false, true}) {
        all.push_back(
            {"linear_attend with decays",
             {q, k, k},
             {q, s, z},
             [=](Context& c, const Views& in, const Targets& out) {
                 linear_attend(c, in[0], in[1], in[2], {.out = out[0], .final = {out[1], out[2]}}, decaying(lengths));
             },
             512,
             {},
             {1, 2}});
        all.push_back(
            {"linear_attend with decays, backward",
             {q, k, k, q, s, z},
             {q, k, k, {4}, s, z},
             [=](Context& c, const Views& in, const Targets& out) {
                 const LinearAttentionGradients gradients{
                     .dq = out[0], .dk = out[1], .dv = out[2], .dinitial = {out[4], out[5]}, .ddecay = out[3]};
                 linear_attend_backward(c,
                                        {.q = in[0], .k = in[1], .v = in[2], .dout = in[3], .dfinal = {in[4], in[5]}},
                                        gradients, decaying(lengths));
             },
             4096,
             {4, 5},
             {3, 4, 5}});
    }
}

void add_infini(std::vector<Operation>& all) {
    const Shape q{2, 4, 40, 9}, k{2, 2, 40, 9}, v{2, 2, 40, 5}, out{2, 4, 40, 5}, gates{4};
    for (const MemoryUpdate update : {MemoryUpdate::linear, MemoryUpdate::delta}) {
        const InfiniOptions options{.segment = 16, .update = update};
        all.push_back({"infini_attend",
                       {q, k, v, gates},
                       {out},
                       [=](Context& c, const Views& in, const Targets& to) {
                           InfiniMemory memory;  // in two calls, the first of which ends inside a segment
                           const auto part = [](const auto& x, std::int64_t begin, std::int64_t end) {
                               return x.slice(2, begin, end);
                           };
                           for (const auto& [begin, end] : {std::pair{0, 21}, std::pair{21, 40}}) {
                               infini_attend(c, part(in[0], begin, end), part(in[1], begin, end),
                                             part(in[2], begin, end), in[3], part(to[0], begin, end), memory, options);
                           }
                       },
                       2048,
                       {3}});
        all.push_back({"infini_attend backward",
                       {q, k, v, gates, out},
                       {q, k, v, gates},
                       [=](Context& c, const Views& in, const Targets& to) {
                           infini_attend_backward(
                               c, {.q = in[0], .k = in[1], .v = in[2], .gates = in[3], .dout = in[4]},
                               {.dq = to[0], .dk = to[1], .dv = to[2], .dgates = to[3]}, {}, options);
                       },
                       8192,
                       {3},
                       {3}});
    }
}

void add_mla(std::vector<Operation>& all) {
    const Shape q{2, 3, 20, 12}, latent{2, 20, 16}, rotary{2, 20, 4}, up_key{3, 8, 16}, up_value{3, 5, 16},
        out{2, 3, 20, 5}, lse{2, 3, 20};
    const AttentionOptions options{.causal = true};
    all.push_back({"mla_attend",
                   {q, latent, rotary, up_key, up_value},
                   {out, lse},
                   [=](Context& c, const Views& in, const Targets& to) {
                       mla_attend(c, in[0], in[1], in[2], {in[3], in[4]}, {.out = to[0], .lse = to[1]}, options);
                   },
                   2048,
                   {},
                   {1}});
    all.push_back({"mla_attend backward",
                   {q, latent, rotary, up_key, up_value, out},
                   {q, latent, rotary, up_key, up_value},
                   [=](Context& c, const Views& in, const Targets& to) {
                       const DType type = in[0].dtype();
                       Tensor result(type, out, c.device()), sums(type, lse, c.device());
                       mla_attend(c, in[0], in[1], in[2], {in[3], in[4]}, {.out = result, .lse = sums}, options);
                       mla_attend_backward(c,
                                           {.q = in[0],
                                            .latent = in[1],
                                            .rotary_key = in[2],
                                            .weights = {in[3], in[4]},
                                            .out = result,
                                            .lse = sums,
                                            .dout = in[5]},
                                           {.dq = to[0],
                                            .dlatent = to[1],
                                            .drotary_key = to[2],
                                            .dup_key = to[3],
                                            .dup_value = to[4],
                                            .dbias = {},
                                            .dsinks = {},
                                            .dalibi_slopes = {}},
                                           options);
                       c.synchronise();
                   },
                   8192});
    all.push_back({"mla_attend_absorbed",
                   {q, {2, 20, 20}, up_key, up_value},
                   {out},
                   [=](Context& c, const Views& in, const Targets& to) {
                       mla_attend_absorbed(c, in[0], in[1], {in[2], in[3]}, to[0], options);
                   },
                   2048});
}

/// In f32 and f64: what is handed on in 16 bits has an error of its own.
TEST(OperationsOnTheGpu, WhatIsMadeOfSeveral) {
    if (devices().size() < 2) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
    Context cpu(2), gpu(Mirror::device);
    cpu.set_kernel("reference");
    std::vector<Operation> all;
    add_decaying(all);
    add_infini(all);
    add_mla(all);
    std::set<std::string> without;
    std::uint64_t seed = 1000;
    for (const Operation& o : all) {
        for (const DType dtype : {DType::f32, DType::f64}) {
            for (const std::string_view layout : all_layouts) {
                check_operation(o, cpu, gpu, dtype, layout, ++seed, without);
            }
        }
    }
    std::printf("compositions on the GPU: %d calls\n", static_cast<int>(seed - 1000));
    for (const std::string& name : without) { ADD_FAILURE() << name << " has no kernel of the GPU"; }
}

TEST(OperationsOnTheGpu, EveryTypeAndLayout) {
    if (devices().size() < 2) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
    Context cpu(2), gpu(Mirror::device);
    cpu.set_kernel("reference");
    std::set<std::string> without;
    std::uint64_t seed = 0;
    for (const Operation& o : operations()) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
            for (const std::string_view layout : all_layouts) {
                check_operation(o, cpu, gpu, dtype, layout, ++seed, without);
            }
        }
    }
    std::printf("operations on the GPU: %d calls\n", static_cast<int>(seed));
    for (const std::string& name : without) { ADD_FAILURE() << name << " has no kernel of the GPU"; }
}

}  // namespace
}  // namespace heed::conformance
