/// Every call that cannot be carried out: the message names the function, the argument, what was expected and what
/// came, and nothing has been written.

#include "unit/ops/attention_mistakes.h"

namespace heed::testing {
namespace {

/// Wrong in both passes.
const std::vector<Mistake>& mistakes_of_inputs_and_options() {
    static const std::vector<Mistake> list{
        {"q missing", [](Given& s) { s.view_q = {}; }, "q: expected a tensor of 4 axes, got none"},
        {"k missing", [](Given& s) { s.view_k = {}; }, "k: expected a tensor of 4 axes, got none"},
        {"v missing", [](Given& s) { s.view_v = {}; }, "v: expected a tensor of 4 axes, got none"},
        {"q of three axes",
         [](Given& s) {
             s.view_q = shaped(s, DType::f32, {4, 3, 8});
         },
         "q: expected 4 axes [batch, heads, length, size], got [4, 3, 8]"},
        {"q without memory",
         [](Given& s) {
             s.view_q = View(DType::f32, nullptr, {2, 4, 3, 8});
         },
         "q: expected memory, got a null pointer"},
        {"q of integers",
         [](Given& s) {
             s.view_q = shaped(s, DType::i32, {2, 4, 3, 8});
         },
         "q: expected f32 or bf16 or f16 or f64, got i32"},
        {"k of another type",
         [](Given& s) {
             s.view_k = shaped(s, DType::bf16, {2, 2, 5, 8});
         },
         "k: expected f32, got bf16"},
        {"v of another type",
         [](Given& s) {
             s.view_v = shaped(s, DType::f16, {2, 2, 5, 6});
         },
         "v: expected f32, got f16"},
        {"batch of k",
         [](Given& s) {
             s.view_k = shaped(s, DType::f32, {3, 2, 5, 8});
         },
         "k: expected batch 2 as in q, got 3"},
        {"head size of k",
         [](Given& s) {
             s.view_k = shaped(s, DType::f32, {2, 2, 5, 7});
         },
         "k: expected head size 8 as in q, got 7"},
        {"head size 0",
         [](Given& s) {
             s.view_q = shaped(s, DType::f32, {2, 4, 3, 0}), s.view_k = s.view_q;
         },
         "q: expected a head size of at least 1, got [2, 4, 3, 0]"},
        {"heads that do not divide",
         [](Given& s) {
             s.view_k = shaped(s, DType::f32, {2, 3, 5, 8});
         },
         "k: expected 4, 2 or 1 heads for the 4 of q, got 3"},
        {"length of v",
         [](Given& s) {
             s.view_v = shaped(s, DType::f32, {2, 2, 4, 6});
         },
         "v: expected batch, heads and length of k [2, 2, 5, 8], got [2, 2, 4, 6]"},
        {"heads of v",
         [](Given& s) {
             s.view_v = shaped(s, DType::f32, {2, 4, 5, 6});
         },
         "v: expected batch, heads and length of k [2, 2, 5, 8], got [2, 4, 5, 6]"},
        {"values of size 0",
         [](Given& s) {
             s.view_v = shaped(s, DType::f32, {2, 2, 5, 0});
         },
         "v: expected a head size of at least 1, got [2, 2, 5, 0]"},
        {"scale", [](Given& s) { s.options.scale = infinity; }, "scale: expected a finite number, got inf"},
        {"softcap below 0", [](Given& s) { s.options.softcap = -1; },
         "softcap: expected 0 (none) or a positive number, got -1.000000"},
        {"softcap NaN", [](Given& s) { s.options.softcap = std::nan(""); },
         "softcap: expected 0 (none) or a positive number, got nan"},
        {"dropout of all", [](Given& s) { s.options.dropout.p = 1; }, "dropout.p: expected 0 <= p < 1, got 1.000000"},
        {"dropout below 0", [](Given& s) { s.options.dropout.p = -0.5; },
         "dropout.p: expected 0 <= p < 1, got -0.500000"},
        {"dropout without a seed", [](Given& s) { s.options.dropout.p = 0.5; },
         "dropout.seed: expected a number, as dropout.p is above 0 and no mask is given, got none"},
        {"window left", [](Given& s) { s.options.window.left = -2; },
         "window.left: expected -1 (unlimited) or more, got -2"},
        {"window right", [](Given& s) { s.options.window.right = -7; },
         "window.right: expected -1 (unlimited) or more, got -7"},
        {"align", [](Given& s) { s.options.align = static_cast<Align>(9); },
         "align: expected bottom_right or top_left, got 9"},
        {"allow of three axes",
         [](Given& s) {
             s.options.allow = shaped(s, DType::u8, {4, 3, 5});
         },
         "allow: expected 4 axes, each of [B,H,T,S] or 1, got [4, 3, 5]"},
        {"allow of another length",
         [](Given& s) {
             s.options.allow = shaped(s, DType::u8, {1, 1, 3, 6});
         },
         "allow: expected each axis of [2, 4, 3, 5] or 1, got [1, 1, 3, 6]"},
        {"allow of floats",
         [](Given& s) {
             s.options.allow = shaped(s, DType::f32, {1, 1, 3, 5});
         },
         "allow: expected u8 or bool, got f32"},
        {"keep of another shape",
         [](Given& s) {
             s.options.dropout.keep = shaped(s, DType::u8, {2, 4, 5, 3});
         },
         "dropout.keep: expected each axis of [2, 4, 3, 5] or 1, got [2, 4, 5, 3]"},
        {"keep of floats",
         [](Given& s) {
             s.options.dropout.keep = shaped(s, DType::f32, {2, 4, 3, 5});
         },
         "dropout.keep: expected u8 or bool, got f32"},
        {"bias of another shape",
         [](Given& s) {
             s.options.bias = shaped(s, DType::f32, {2, 2, 3, 5});
         },
         "bias: expected each axis of [2, 4, 3, 5] or 1, got [2, 2, 3, 5]"},
        {"bias of integers",
         [](Given& s) {
             s.options.bias = shaped(s, DType::i32, {1, 1, 3, 5});
         },
         "bias: expected f32 or bf16 or f16 or f64, got i32"},
        {"slopes of one head too many", [](Given& s) { s.options.alibi_slopes = shaped(s, DType::f32, {5}); },
         "alibi_slopes: expected shape [4], got [5]"},
        {"slopes by entry",
         [](Given& s) {
             s.options.alibi_slopes = shaped(s, DType::f32, {3, 4});
         },
         "alibi_slopes: expected [4] or [2, 4], got [3, 4]"},
        {"slopes in half", [](Given& s) { s.options.alibi_slopes = shaped(s, DType::f16, {4}); },
         "alibi_slopes: expected f32 or f64, got f16"},
        {"sinks of two heads", [](Given& s) { s.options.sinks = shaped(s, DType::f32, {2}); },
         "sinks: expected shape [4], got [2]"},
        {"sinks in half", [](Given& s) { s.options.sinks = shaped(s, DType::bf16, {4}); },
         "sinks: expected f32 or f64, got bf16"},
        {"length above",
         [](Given& s) {
             s.options.key_lengths = shaped(s, DType::i64, {2}, {5, 6});
         },
         "key_lengths[1]: expected 0 to 5, got 6"},
        {"length below",
         [](Given& s) {
             s.options.query_lengths = shaped(s, DType::i32, {2}, {-1, 3});
         },
         "query_lengths[0]: expected 0 to 3, got -1"},
        {"lengths of three", [](Given& s) { s.options.key_lengths = shaped(s, DType::i64, {3}); },
         "key_lengths: expected shape [2], got [3]"},
        {"lengths in floats", [](Given& s) { s.options.key_lengths = shaped(s, DType::f32, {2}); },
         "key_lengths: expected i64 or i32, got f32"},
        {"positions of another length",
         [](Given& s) {
             s.options.query_positions = shaped(s, DType::i64, {2, 5});
         },
         "query_positions: expected [2, 3] or [1, 3], got [2, 5]"},
        {"positions of another batch",
         [](Given& s) {
             s.options.key_positions = shaped(s, DType::i64, {3, 5});
         },
         "key_positions: expected [2, 5] or [1, 5], got [3, 5]"},
        {"positions in floats",
         [](Given& s) {
             s.options.key_positions = shaped(s, DType::f64, {1, 5});
         },
         "key_positions: expected i64 or i32, got f64"},
        {"a position out of this world",
         [](Given& s) {
             s.options.key_positions = shaped(s, DType::i64, {1, 5}, {0, 0x1p60, 0, 0, 0});
         },
         "key_positions: expected positions within 2^53, got 1152921504606846976"},
        {"one cumulative length",
         [](Given& s) {
             s.options.cu_seqlens_q = shaped(s, DType::i32, {2}, {0, 3});
         },
         "cu_seqlens_k: expected both cumulative lengths, got one"},
        {"packed batch of two",
         [](Given& s) {
             s.options.cu_seqlens_q = s.options.cu_seqlens_k = shaped(s, DType::i32, {2}, {0, 3});
         },
         "q: expected batch 1 where sequences are packed (cu_seqlens), got 2"},
        {"pattern of another batch",
         [](Given& s) {
             s.options.pattern = patterns::padding({1, 2, 3});
         },
         nullptr},
        {"kernel nobody knows", [](Given& s) { s.options.kernel = "gpu"; }, nullptr},
    };
    return list;
}

TEST(AttentionErrors, WrongInputsAndOptions) {
    for (const Mistake& mistake : mistakes_of_inputs_and_options()) {
        if (mistake.message == nullptr) { continue; }  // its own test below
        expect_error("attend", mistake, [](Given& s) { s.run_forward(); });
        expect_error("attend_backward", mistake, [](Given& s) { s.run_backward(); });
    }
}

TEST(AttentionErrors, PatternsAndKernelsAreNamed) {
    for (const Mistake& mistake : mistakes_of_inputs_and_options()) {
        if (mistake.message != nullptr) { continue; }
        SCOPED_TRACE(mistake.what);
        Given given;
        mistake.make(given);
        try {
            given.run_forward();
            ADD_FAILURE() << "no error";
        } catch (const Error& error) {
            const std::string text = error.what();
            EXPECT_EQ(text.rfind("[attend] ", 0), 0U) << text;
            const bool names_it = text.find("padding") != std::string::npos ||
                                  (text.find("kernel: expected one of ") != std::string::npos &&
                                   text.find("reference, got gpu") != std::string::npos);
            EXPECT_TRUE(names_it) << text;
        }
        given.expect_nothing_written();
    }
}

/// Packed calls need a batch of 1.
void pack(Given& s) {
    s.view_q = s.view_q.slice(0, 0, 1);
    s.view_k = s.view_k.slice(0, 0, 1);
    s.view_v = s.view_v.slice(0, 0, 1);
    s.view_out = s.view_out.slice(0, 0, 1);
    s.view_lse = s.view_lse.slice(0, 0, 1);
}

TEST(AttentionErrors, PackedSequences) {
    static const Tensor good_q = filled(DType::i32, {3}, {0, 1, 3});
    static const Tensor good_k = filled(DType::i32, {3}, {0, 2, 5});
    const auto both = [](Given& s, View cu_q, View cu_k) {
        pack(s);
        s.options.cu_seqlens_q = cu_q;
        s.options.cu_seqlens_k = cu_k;
    };
    const std::vector<Mistake> list{
        {"not from 0",
         [&](Given& s) {
             both(s, shaped(s, DType::i32, {3}, {1, 2, 3}), good_k);
         },
         "cu_seqlens_q[0]: expected 0, got 1"},
        {"falling",
         [&](Given& s) {
             both(s, good_q, shaped(s, DType::i64, {3}, {0, 4, 2}));
         },
         "cu_seqlens_k[2]: expected 4 to 5, got 2"},
        {"past the end",
         [&](Given& s) {
             both(s, good_q, shaped(s, DType::i64, {3}, {0, 4, 6}));
         },
         "cu_seqlens_k[2]: expected 4 to 5, got 6"},
        {"two axes",
         [&](Given& s) {
             both(s, shaped(s, DType::i32, {1, 3}), good_k);
         },
         "cu_seqlens_q: expected shape [N+1] for N sequences, got [1, 3]"},
        {"no entry", [&](Given& s) { both(s, shaped(s, DType::i32, {0}), good_k); },
         "cu_seqlens_q: expected shape [N+1] for N sequences, got [0]"},
        {"in floats", [&](Given& s) { both(s, shaped(s, DType::f32, {3}), good_k); },
         "cu_seqlens_q: expected i64 or i32, got f32"},
        {"different numbers",
         [&](Given& s) {
             both(s, good_q, shaped(s, DType::i32, {2}, {0, 5}));
         },
         "cu_seqlens_k: expected [3] as cu_seqlens_q, got [2]"},
        {"with lengths",
         [&](Given& s) {
             both(s, good_q, good_k);
             s.options.key_lengths = shaped(s, DType::i64, {2}, {1, 1});
         },
         "key_lengths: expected none where sequences are packed (cu_seqlens), got a tensor"},
        {"bias shorter than the longest",
         [&](Given& s) {
             both(s, good_q, good_k);
             s.options.bias = shaped(s, DType::f32, {2, 4, 2, 2});
         },
         "bias: expected each axis of [2, 4, 2, 3] or 1, got [2, 4, 2, 2]"},
        {"bias longer than the longest",
         [&](Given& s) {
             both(s, good_q, good_k);
             s.options.bias = shaped(s, DType::f32, {2, 4, 2, 4});
         },
         "bias: expected each axis of [2, 4, 2, 3] or 1, got [2, 4, 2, 4]"},
        {"allow longer than the longest",
         [&](Given& s) {
             both(s, good_q, good_k);
             s.options.allow = shaped(s, DType::boolean, {1, 1, 3, 3});
         },
         "allow: expected each axis of [2, 4, 2, 3] or 1, got [1, 1, 3, 3]"},
    };
    for (const Mistake& mistake : list) {
        expect_error("attend", mistake, [](Given& s) { s.run_forward(); });
    }
}

TEST(AttentionErrors, TheSetupItselfIsRight) {
    Given given;
    EXPECT_NO_THROW(given.run_forward());
    EXPECT_NO_THROW(given.run_backward());
}

TEST(AttentionErrors, ExplainRefusesWhatAttendWould) {
    const auto message = [](const AttentionShape& shape, const AttentionOptions& options) -> std::string {
        try {
            explain(shape, options);
        } catch (const Error& error) { return error.what(); }
        return "no error";
    };
    EXPECT_EQ(message({.batch = -1}, {}), "[explain] batch: expected 0 or more, got -1");
    EXPECT_EQ(message({.heads = 0}, {}), "[explain] heads: expected 1 or more, got 0");
    EXPECT_EQ(message({.kv_heads = 0}, {}), "[explain] kv_heads: expected 1 or more, got 0");
    EXPECT_EQ(message({.queries = -5}, {}), "[explain] queries: expected 0 or more, got -5");
    EXPECT_EQ(message({.keys = -5}, {}), "[explain] keys: expected 0 or more, got -5");
    EXPECT_EQ(message({.head_size = 0}, {}), "[explain] head_size: expected 1 or more, got 0");
    EXPECT_EQ(message({.value_size = 0}, {}), "[explain] value_size: expected 1 or more, got 0");
    EXPECT_EQ(message({.heads = 8, .kv_heads = 6}, {}),
              "[explain] k: expected 8, 4, 2 or 1 heads for the 8 of q, got 6");
    EXPECT_EQ(message({.dtype = DType::i8}, {}), "[explain] q: expected f32 or bf16 or f16 or f64, got i8");
    EXPECT_EQ(message({}, {.softcap = -1}), "[explain] softcap: expected 0 (none) or a positive number, got -1.000000");
}

}  // namespace
}  // namespace heed::testing
