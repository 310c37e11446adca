// Mask patterns: time against the blocks that they visit. And MLA's two forms in decoding.
#include <heed/attention.h>
#include <heed/mla.h>

#include "long.h"

namespace heed::bench {
namespace {

constexpr std::int64_t block = 64;  // what the CPU kernels follow a pattern in

/// Share of the blocks that a kernel has to visit, over all heads.
double visited_share(const Pattern& pattern, std::int64_t length, std::int64_t heads) {
    std::int64_t visited = 0;
    std::int64_t total = 0;
    for (std::int64_t head = 0; head < heads; ++head) {
        for (std::int64_t i = 0; i < length; i += block) {
            for (std::int64_t j = 0; j < length; j += block, ++total) {
                const Cover cover = pattern.cover({.batch = 0,
                                                   .head = head,
                                                   .query_begin = i,
                                                   .query_end = i + block,
                                                   .key_begin = j,
                                                   .key_end = j + block});
                visited += cover == Cover::none ? 0 : 1;
            }
        }
    }
    return static_cast<double>(visited) / static_cast<double>(total);
}

}  // namespace

void sparse_against_blocks(Context& context, const LongSettings& settings) {
    constexpr std::int64_t length = 4096, heads = 2, size = 64;
    const char* patterns[] = {"everything",
                              "random_blocks(64, 64, 32, 1)",
                              "random_blocks(64, 64, 16, 1)",
                              "random_blocks(64, 64, 8, 1)",
                              "random_blocks(64, 64, 4, 1)",
                              "random_blocks(128, 32, 4, 1)",
                              "causal",
                              "causal & window(1023, 0)",
                              "causal & window(511, 0)",
                              "causal & (prefix(64) | window(511, 0))",
                              "window(256, 256) | global(0)",
                              "causal & fixed(512, 64)",
                              "document(0*500, 1*1500, 2*96, 3*2000)"};
    const Tensor q = random_tensor({1, heads, length, size}, 1), k = random_tensor({1, heads, length, size}, 2),
                 v = random_tensor({1, heads, length, size}, 3), dout = random_tensor({1, heads, length, size}, 4);
    Tensor out(DType::f32, q.shape()), lse(DType::f32, {1, heads, length});
    Tensor dq(DType::f32, q.shape()), dk(DType::f32, q.shape()), dv(DType::f32, q.shape());
    for (const bool backward : {false, true}) {
        std::vector<std::function<void()>> bodies;
        for (const char* text : patterns) {
            AttentionOptions options;
            options.pattern = patterns::parse(text);
            if (backward) {
                bodies.push_back([&, options] {
                    attend_backward(context, {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout},
                                    {.dq = dq, .dk = dk, .dv = dv}, options);
                });
            } else {
                bodies.push_back([&, options] { attend(context, q, k, v, {.out = out, .lse = lse}, options); });
            }
        }
        const std::vector<std::vector<double>> seconds = interleaved(settings, bodies);
        for (std::size_t n = 0; n < bodies.size(); ++n) {
            const double share = visited_share(patterns::parse(patterns[n]), length, heads);
            const double time = ratio(seconds[n], seconds[0]);
            const LongRow row{.section = std::string("sparse patterns, ") + (backward ? "backward" : "forward") +
                                         ", T = S = 4096, 2 heads of 64, f32: against blocks of 64 x 64 visited",
                              .name = patterns[n],
                              .figures = {{"ms", median(seconds[n]) * 1e3},
                                          {"blocks %", 100 * share},
                                          {"time %", 100 * time},
                                          {"time/block", time / share}}};
            print(n == 0 ? row : with_bar(row, "time/block", time / share, 1.2, true));
        }
    }
}

void mla_decoding(Context& context, const LongSettings& settings) {
    constexpr std::int64_t heads = 16, latent = 512, plain = 128, rotary = 64, value = 128;
    const Tensor up_key = random_tensor({heads, plain, latent}, 1), up_value = random_tensor({heads, value, latent}, 2);
    const Tensor q = random_tensor({1, heads, 1, plain + rotary}, 3);
    Tensor out(DType::f32, {1, heads, 1, value});
    LongSettings fewer = settings;
    fewer.rounds = std::min(settings.rounds, 5);
    for (const std::int64_t keys : {256, 1024, 4096}) {
        const Tensor cache = random_tensor({1, keys, latent + rotary}, 4);
        const std::vector<std::vector<double>> seconds =
            interleaved(fewer, {[&] {
                                    mla_attend_absorbed(context, q, cache, {up_key, up_value}, out);
                                },
                                [&] {
                                    mla_attend(context, q, cache.view().slice(2, 0, latent),
                                               cache.view().slice(2, latent, latent + rotary), {up_key, up_value}, out);
                                }});
        print({.section = "MLA, one query, 16 heads, r 512, n 128, p 64, v 128, f32",
               .name = std::to_string(keys) + " keys",
               .figures = {{"absorbed ms", median(seconds[0]) * 1e3},
                           {"expanded ms", median(seconds[1]) * 1e3},
                           {"expanded/absorbed", ratio(seconds[1], seconds[0])}}});
    }
}

}  // namespace heed::bench
