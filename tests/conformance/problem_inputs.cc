#include "base/dispatch.h"
#include "conformance/problem.h"
#include "support/numbers.h"
#include "support/random.h"

#include <cmath>
#include <limits>

namespace heed::conformance {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

double rounded(DType dtype, double value) {
    std::uint64_t word = 0;
    write_number(dtype, &word, 0, value);
    return read_number(dtype, &word, 0);
}

}  // namespace

void Problem::make_tensors() {
    testing::Random random(seed_ + 6);
    const std::string_view inputs = c[Axis::inputs];
    const bool plant = inputs == "planted";
    // Which rows anything may look at: those inside their length; when planting, those that take part at all.
    std::vector<char> query_used(static_cast<std::size_t>(B * H * T), 0);
    std::vector<char> key_used(static_cast<std::size_t>(B * G * S), 0);
    for (std::int64_t n = 0; n < N; ++n) {
        const Piece& piece = pieces[static_cast<std::size_t>(n)];
        for (std::int64_t h = 0; h < H; ++h) {
            const std::int64_t g = h / (H / G);
            for (std::int64_t i = 0; i < piece.queries; ++i) {
                char& query = query_used[static_cast<std::size_t>((piece.batch * H + h) * T + piece.query_begin + i)];
                if (!plant) { query = 1; }
                for (std::int64_t j = 0; plant && j < piece.keys; ++j) {
                    if (!visible(n, h, i, j)) { continue; }
                    query = 1;
                    key_used[static_cast<std::size_t>((piece.batch * G + g) * S + piece.key_begin + j)] = 1;
                }
            }
            for (std::int64_t j = 0; !plant && j < piece.keys; ++j) {
                key_used[static_cast<std::size_t>((piece.batch * G + g) * S + piece.key_begin + j)] = 1;
            }
        }
    }
    const auto make = [&](int index, DType type, std::int64_t heads, std::int64_t length, std::int64_t size,
                          const std::vector<char>& used, double loud, double spread, std::vector<double>& clean) {
        Placed placed(type, Shape{B, heads, length, size}, layout(index));
        const std::int64_t elements = B * heads * length * size;
        clean.assign(static_cast<std::size_t>(elements), 0);
        for (std::int64_t e = 0; e < elements; ++e) {
            const bool in_use = used[static_cast<std::size_t>(e / size)] != 0;
            const double value = rounded(type, spread * random.normal());
            if (in_use) { clean[static_cast<std::size_t>(e)] = value; }
            placed.store(e, in_use ? value : loud);
        }
        return placed;
    };
    q = make(0, dtype, H, T, D, query_used, nan, inputs == "large" ? 30 : 1, clean_q);
    k = make(1, dtype, G, S, D, key_used, nan, 1, clean_k);
    v = make(2, dtype, G, S, E, key_used, plant ? testing::infinity : nan, 1, clean_v);
    dout = make(3, out_dtype, H, T, E, query_used, nan, 1, clean_dout);
    if (inputs == "equal") {  // every key of a head the same: all weights equal
        for (std::int64_t e = 0; e < B * G * S * D; ++e) {
            if (key_used[static_cast<std::size_t>(e / D)] == 0) { continue; }
            const double value = rounded(dtype, std::cos(static_cast<double>(e % D + 3 * (e / (S * D)))));
            clean_k[static_cast<std::size_t>(e)] = value;
            k.store(e, value);
        }
    }
    if (c[Axis::dlse] == "given") {
        dlse = Placed(lse_dtype, Shape{B, H, T}, layout(4));
        clean_dlse.assign(static_cast<std::size_t>(B * H * T), 0);
        for (std::int64_t e = 0; e < B * H * T; ++e) {
            // With a sink even a row that sees nothing has an lse to differentiate.
            const bool with_sink = sink(e / T % H) != -testing::infinity;
            const bool in_use = query_used[static_cast<std::size_t>(e)] != 0;
            if (!in_use && with_sink && plant) {
                dlse.store(e, 0);
                continue;
            }
            const double value = rounded(lse_dtype, random.normal());
            if (in_use) { clean_dlse[static_cast<std::size_t>(e)] = value; }
            dlse.store(e, in_use ? value : nan);
        }
    }
}

void Problem::plant_hidden_bias() {
    if (c[Axis::bias] != "BHTS" || !options.bias) { return; }
    for (Placed& placed : placed_) {
        if (placed.view().data() != options.bias.data()) { continue; }
        const Shape& shape = placed.view().shape();
        for (std::int64_t e = 0; e < shape.elements(); ++e) {
            const std::int64_t j = e % shape[3];
            const std::int64_t i = e / shape[3] % shape[2];
            const std::int64_t h = e / (shape[3] * shape[2]) % H;
            const std::int64_t n = e / (shape[3] * shape[2] * H);
            const Piece& piece = pieces[static_cast<std::size_t>(n)];
            const bool inside = i < piece.queries && j < piece.keys;
            if ((!inside || !visible(n, h, i, j)) && placed.load(e) != -testing::infinity) { placed.store(e, nan); }
        }
    }
}

void Problem::plant_visible_nan() {
    testing::Random random(seed_ + 7);
    std::vector<std::int64_t> candidates;
    for (std::int64_t n = 0; n < N; ++n) {
        const Piece& piece = pieces[static_cast<std::size_t>(n)];
        if (piece.queries > 0 && piece.keys > 0) { candidates.push_back(n); }
    }
    if (candidates.empty()) { return; }
    const std::int64_t n =
        candidates[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(candidates.size())))];
    const Piece& piece = pieces[static_cast<std::size_t>(n)];
    const auto put = [&](Placed& placed, std::vector<double>& clean, std::int64_t row, std::int64_t size) {
        const std::int64_t at = row * size + random.below(size);
        placed.store(at, nan);
        clean[static_cast<std::size_t>(at)] = nan;
    };
    const std::string_view where = c[Axis::inputs].substr(7);
    const std::int64_t query = piece.query_begin + random.below(piece.queries);
    const std::int64_t key = piece.key_begin + random.below(piece.keys);
    if (where == "q") { put(q, clean_q, (piece.batch * H + random.below(H)) * T + query, D); }
    if (where == "k") { put(k, clean_k, (piece.batch * G + random.below(G)) * S + key, D); }
    if (where == "v") { put(v, clean_v, (piece.batch * G + random.below(G)) * S + key, E); }
}

}  // namespace heed::conformance
