// RoPE against the memory: a plain loop over the same bytes takes its turn with every case.
#include <heed/positions.h>

#include "limits.h"
#include "long.h"

namespace heed::bench {

void rope_against_memory(Context& context, const LongSettings& settings) {
    constexpr std::int64_t heads = 32, size = 128;
    struct Case {
        const char* name;
        DType dtype;
        Pairing pairing;
        bool in_place;
        bool heads_inside;  ///< [B,T,H,D] memory
    };
    const Case cases[] = {{"halves, in place", DType::f32, Pairing::halves, true, false},
                          {"interleaved, in place", DType::f32, Pairing::interleaved, true, false},
                          {"halves, in place, memory [B,T,H,D]", DType::f32, Pairing::halves, true, true},
                          {"halves, to another tensor", DType::f32, Pairing::halves, false, false},
                          {"bf16, halves, in place", DType::bf16, Pairing::halves, true, false},
                          {"bf16, interleaved, in place", DType::bf16, Pairing::interleaved, true, false},
                          {"bf16, halves, in place, memory [B,T,H,D]", DType::bf16, Pairing::halves, true, true},
                          {"bf16, halves, to another tensor", DType::bf16, Pairing::halves, false, false},
                          {"f16, halves, in place", DType::f16, Pairing::halves, true, false},
                          {"f16, interleaved, in place", DType::f16, Pairing::interleaved, true, false}};
    for (const Case& c : cases) {
        const std::int64_t tokens = c.dtype == DType::f32 ? 8192 : 16384;  // 128 MiB either way
        Tensor x = random_tensor({1, heads, tokens, size}, 1, c.dtype);
        Tensor other = c.in_place ? Tensor() : Tensor(c.dtype, x.shape());
        const Shape by_head = x.shape().row_major();
        const Shape strides = c.heads_inside ? Shape{by_head[0], size, heads * size, 1} : by_head;
        const MutableView in(c.dtype, x.data(), x.shape(), strides);
        const MutableView out(c.dtype, c.in_place ? x.data() : other.data(), x.shape(), strides);
        const RopeTable table = rope_table({.size = size, .pairing = c.pairing});
        const std::span<std::byte> to(static_cast<std::byte*>(out.data()), x.bytes());
        const std::span<const std::byte> from(static_cast<const std::byte*>(x.data()), x.bytes());
        const std::vector<std::vector<double>> seconds =
            interleaved(settings, {[&] { rope(context, in, out, table); },
                                   [&] { static_cast<void>(copy_seconds(to, from, settings.threads)); }});
        const double bytes = 2e-9 * static_cast<double>(x.bytes());
        const double percent = 100 * ratio(seconds[1], seconds[0]);
        const LongRow row{
            .section =
                "RoPE of [1, 32, 8192, 128] f32, [1, 32, 16384, 128] bf16 and f16: against a plain loop that "
                "reads and writes the same bytes",
            .name = c.name,
            .figures = {{"ms", median(seconds[0]) * 1e3},
                        {"GB/s", bytes / median(seconds[0])},
                        {"plain GB/s", bytes / median(seconds[1])},
                        {"% of plain", percent}}};
        print(with_bar(row, "% of plain", percent, 80, false));
    }
}

}  // namespace heed::bench
