/// Outputs that cannot be written and gradients that cannot be computed; see attention_errors_test.cc for the inputs.

#include "unit/ops/attention_mistakes.h"

namespace heed::testing {
namespace {

TEST(AttentionOutputErrors, OutputsOfTheForwardPass) {
    const std::vector<Mistake> list{
        {"none", [](Given& s) { s.view_out = {}; }, "out: expected a tensor of shape [2, 4, 3, 6], got none"},
        {"shape", [](Given& s) { s.view_out = s.view_out.slice(3, 0, 5); },
         "out: expected [2, 4, 3, 6], got [2, 4, 3, 5]"},
        {"type",
         [](Given& s) {
             s.extra = Tensor(DType::f64, {2, 4, 3, 6}), s.view_out = s.extra;
         },
         "out: expected f32, got f64"},
        {"elements that share a place",
         [](Given& s) {
             s.view_out = MutableView(DType::f32, s.out.data(), {2, 4, 3, 6}, {72, 0, 6, 1});
         },
         "out: expected strides that give every element a place of its own, got [72, 0, 6, 1]"},
        {"over q",
         [](Given& s) {
             s.view_out = MutableView(DType::f32, s.q.data(), {2, 4, 3, 6});
         },
         "out: expected memory apart from q, got an overlap"},
        {"over k",
         [](Given& s) {
             s.view_k = View(DType::f32, s.out.data(), {2, 2, 1, 8}), s.view_v = s.view_v.slice(2, 0, 1);
         },
         "out: expected memory apart from k, got an overlap"},
        {"over bias",
         [](Given& s) {
             s.options.bias = View(DType::f32, s.out.data(), {2, 4, 3, 5});
         },
         "out: expected memory apart from bias, got an overlap"},
        {"lse shape", [](Given& s) { s.view_lse = s.view_lse.slice(2, 0, 2); },
         "lse: expected [2, 4, 3], got [2, 4, 2]"},
        {"lse type",
         [](Given& s) {
             s.extra = Tensor(DType::bf16, {2, 4, 3}), s.view_lse = s.extra;
         },
         "lse: expected f32 or f64, got bf16"},
        {"lse over out",
         [](Given& s) {
             s.view_lse = MutableView(DType::f32, s.out.data(), {2, 4, 3});
         },
         "lse: expected memory apart from out, got an overlap"},
        {"lse over v",
         [](Given& s) {
             s.view_lse = MutableView(DType::f32, s.v.data(), {2, 4, 3});
         },
         "lse: expected memory apart from v, got an overlap"},
        {"out without memory",
         [](Given& s) {
             s.view_out = MutableView(DType::f32, nullptr, {2, 4, 3, 6});
         },
         "out: expected memory, got a null pointer"},
        {"bias without memory",
         [](Given& s) {
             s.options.bias = View(DType::f32, nullptr, {2, 4, 3, 5});
         },
         "bias: expected memory, got a null pointer"},
        {"lengths without memory", [](Given& s) { s.options.key_lengths = View(DType::i64, nullptr, {2}); },
         "key_lengths: expected memory, got a null pointer"},
        {"out over the lengths",
         [](Given& s) {
             std::memset(s.out.data(), 0, 16);
             s.options.key_lengths = View(DType::i64, s.out.data(), {2});
             s.view_out = MutableView(DType::f32, s.out.data(), {2, 4, 3, 6});
         },
         "out: expected memory apart from key_lengths, got an overlap"},
    };
    for (const Mistake& mistake : list) {
        if (std::string(mistake.what) == "out over the lengths") {
            SCOPED_TRACE(mistake.what);  // lends its own memory, so the poison is not whole
            Given given;
            mistake.make(given);
            EXPECT_THROW(given.run_forward(), Error);
            continue;
        }
        expect_error("attend", mistake, [](Given& s) { s.run_forward(); });
    }
}

TEST(AttentionOutputErrors, InputsAndOutputsOfTheBackwardPass) {
    const std::vector<Mistake> list{
        {"out", [](Given& s) { s.view_forward_out = {}; }, "out: expected a tensor of shape [2, 4, 3, 6], got none"},
        {"out shape", [](Given& s) { s.view_forward_out = s.view_q; }, "out: expected [2, 4, 3, 6], got [2, 4, 3, 8]"},
        {"lse", [](Given& s) { s.view_forward_lse = {}; }, "lse: expected a tensor of shape [2, 4, 3], got none"},
        {"lse type",
         [](Given& s) {
             s.view_forward_lse = shaped(s, DType::f16, {2, 4, 3});
         },
         "lse: expected f32 or f64, got f16"},
        {"dout", [](Given& s) { s.view_dout = {}; }, "dout: expected a tensor of shape [2, 4, 3, 6], got none"},
        {"dout type",
         [](Given& s) {
             s.view_dout = shaped(s, DType::f64, {2, 4, 3, 6});
         },
         "dout: expected f32, got f64"},
        {"dlse shape",
         [](Given& s) {
             s.view_dlse = shaped(s, DType::f32, {2, 4, 4});
         },
         "dlse: expected [2, 4, 3], got [2, 4, 4]"},
        {"dlse type",
         [](Given& s) {
             s.view_dlse = shaped(s, DType::bf16, {2, 4, 3});
         },
         "dlse: expected f32 or f64, got bf16"},
        {"dq", [](Given& s) { s.gradients.dq = {}; }, "dq: expected a tensor of shape [2, 4, 3, 8], got none"},
        {"dk", [](Given& s) { s.gradients.dk = s.dv; }, "dk: expected [2, 2, 5, 8], got [2, 2, 5, 6]"},
        {"dv", [](Given& s) { s.gradients.dv = {}; }, "dv: expected a tensor of shape [2, 2, 5, 6], got none"},
        {"dbias without bias", [](Given& s) { s.gradients.dbias = s.dbias; },
         "dbias: expected none without bias, got a tensor"},
        {"dsinks without sinks", [](Given& s) { s.gradients.dsinks = s.dsinks; },
         "dsinks: expected none without sinks, got a tensor"},
        {"dalibi_slopes without", [](Given& s) { s.gradients.dalibi_slopes = s.dslopes; },
         "dalibi_slopes: expected none without alibi_slopes, got a tensor"},
        {"dbias shape",
         [](Given& s) {
             s.options.bias = std::as_const(s.bias).view().slice(0, 0, 1);
             s.gradients.dbias = s.dbias;
         },
         "dbias: expected [1, 4, 3, 5], got [2, 4, 3, 5]"},
        {"dq over dout",
         [](Given& s) {
             s.view_dout = View(DType::f32, s.dq.data(), {2, 4, 3, 6});
         },
         "dq: expected memory apart from the other inputs, got an overlap"},
        {"dk over dq",
         [](Given& s) {
             s.gradients.dk = MutableView(DType::f32, s.dq.data(), {2, 2, 5, 8});
         },
         "dk: expected memory apart from dq, got an overlap"},
        {"dv over q",
         [](Given& s) {
             s.gradients.dv = MutableView(DType::f32, s.q.data(), {2, 2, 5, 6});
         },
         "dv: expected memory apart from q, got an overlap"},
    };
    for (const Mistake& mistake : list) {
        expect_error("attend_backward", mistake, [](Given& s) { s.run_backward(); });
    }
}

}  // namespace
}  // namespace heed::testing
