#pragma once
/// A pattern as a list of whole numbers that a device can run: each instruction leaves one answer on a stack of bits.

#include <heed/pattern.h>
#include <heed/random.h>

#include <cstdint>
#include <vector>

namespace heed {

/// An instruction is its code, the number of words that follow it, and those words.
enum class PatternCode : std::int64_t {
    everything,     ///< (): yes
    band,           ///< left, right, step
    lengths,        ///< one for each batch entry, or one for all
    document,       ///< count, then the end of each list and all ids, end to end
    fixed,          ///< stride, summary
    global_tokens,  ///< sorted positions
    random_blocks,  ///< block, blocks, count, seed
    blocks,         ///< query block size, key block size, n, n query blocks, n+1 starts, key blocks
    both,           ///< joins the last two answers
    either,
    per_head,  ///< for each head the word at which its part begins
    go_on_at,  ///< a word: where the part of a head ends
};

// ---- running it: constexpr, because code of every device calls it ---------------------------------------------------

struct PatternPoint {
    std::int64_t batch, head, query, key;
};

namespace pattern_code {

constexpr std::int64_t floor_mod(std::int64_t value, std::int64_t divisor) {
    const std::int64_t rest = value % divisor;
    return rest < 0 ? rest + divisor : rest;
}
constexpr std::int64_t floor_div(std::int64_t value, std::int64_t divisor) {
    return value / divisor - (value % divisor < 0 ? 1 : 0);
}

/// The first of `count` sorted numbers that is not below `value`.
constexpr std::int64_t lower_bound(const std::int64_t* sorted, std::int64_t count, std::int64_t value) {
    std::int64_t first = 0;
    while (count > 0) {
        const std::int64_t half = count / 2;
        if (sorted[first + half] < value) {
            first += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return first;
}
constexpr bool is_in(const std::int64_t* sorted, std::int64_t count, std::int64_t value) {
    const std::int64_t at = lower_bound(sorted, count, value);
    return at < count && sorted[at] == value;
}

constexpr bool in_band(const std::int64_t* word, const PatternPoint& p) {
    const std::int64_t left = word[0], right = word[1], step = word[2];
    // Written without sums that int64 might not hold: positions are the caller's.
    if (p.key < p.query && left >= 0 &&
        static_cast<std::uint64_t>(p.query) - static_cast<std::uint64_t>(p.key) > static_cast<std::uint64_t>(left)) {
        return false;
    }
    if (p.key > p.query && right >= 0 &&
        static_cast<std::uint64_t>(p.key) - static_cast<std::uint64_t>(p.query) > static_cast<std::uint64_t>(right)) {
        return false;
    }
    return step == 1 || floor_mod(p.query, step) == floor_mod(p.key, step);
}

constexpr bool same_document(const std::int64_t* word, const PatternPoint& p) {
    const std::int64_t lists = word[0];
    const std::int64_t list = lists == 1 ? 0 : p.batch;
    if (list >= lists) { return false; }
    const std::int64_t begin = list == 0 ? 0 : word[list];
    const std::int64_t size = word[1 + list] - begin;
    const std::int64_t* ids = word + 1 + lists + begin;
    return p.query >= 0 && p.query < size && p.key >= 0 && p.key < size && ids[p.query] == ids[p.key];
}

/// Floyd's sampling asked backwards: block n was drawn where some draw named it, or where the draw that would have made
/// it the last resort named one that was there already.
constexpr bool in_random_blocks(const std::int64_t* word, const PatternPoint& p) {
    const std::int64_t block = word[0], blocks = word[1], count = word[2];
    const auto seed = static_cast<std::uint64_t>(word[3]);
    std::int64_t wanted = floor_div(p.key, block);
    if (wanted < 0 || wanted >= blocks) { return false; }
    const auto query_block = static_cast<std::uint64_t>(floor_div(p.query, block));
    const auto draw = [&](std::int64_t n) {
        const std::uint32_t word_of_n = philox4x32(
            {static_cast<std::uint32_t>(n / 4), static_cast<std::uint32_t>(query_block),
             static_cast<std::uint32_t>(p.head), 0x52424C4BU ^ static_cast<std::uint32_t>(query_block >> 32)},
            seed)[static_cast<std::size_t>(n % 4)];
        const auto choices = static_cast<std::uint64_t>(blocks - count + n + 1);
        return static_cast<std::int64_t>((std::uint64_t{word_of_n} * choices) >> 32);
    };
    for (std::int64_t limit = count;;) {
        for (std::int64_t n = 0; n < limit; ++n) {
            if (draw(n) == wanted) { return true; }
        }
        const std::int64_t resort = wanted - (blocks - count);
        if (resort < 0 || resort >= limit) { return false; }
        wanted = draw(resort);
        limit = resort;
    }
}

constexpr bool in_blocks(const std::int64_t* word, const PatternPoint& p) {
    const std::int64_t listed = word[2];
    const std::int64_t* query_blocks = word + 3;
    const std::int64_t* starts = query_blocks + listed;
    const std::int64_t* key_blocks = starts + listed + 1;
    const std::int64_t query_block = floor_div(p.query, word[0]);
    const std::int64_t row = lower_bound(query_blocks, listed, query_block);
    if (row >= listed || query_blocks[row] != query_block) { return false; }
    return is_in(key_blocks + starts[row], starts[row + 1] - starts[row], floor_div(p.key, word[1]));
}

}  // namespace pattern_code

/// What Pattern::allows says.
constexpr bool run_pattern_program(const std::int64_t* program, std::int64_t words, const PatternPoint& p) {
    using namespace pattern_code;
    std::uint64_t stack = 0;
    for (std::int64_t at = 0; at < words;) {
        const auto code = static_cast<PatternCode>(program[at]);
        const std::int64_t count = program[at + 1];
        const std::int64_t* word = program + at + 2;
        at += 2 + count;
        bool answer = true;
        switch (code) {
            case PatternCode::everything: break;
            case PatternCode::band: answer = in_band(word, p); break;
            case PatternCode::lengths:
                answer = count == 1 ? p.key < word[0] : p.batch < count && p.key < word[p.batch];
                break;
            case PatternCode::document: answer = same_document(word, p); break;
            case PatternCode::fixed:
                answer = floor_mod(p.key, word[0]) >= word[0] - word[1] ||
                         floor_div(p.query, word[0]) == floor_div(p.key, word[0]);
                break;
            case PatternCode::global_tokens: answer = is_in(word, count, p.query) || is_in(word, count, p.key); break;
            case PatternCode::random_blocks: answer = in_random_blocks(word, p); break;
            case PatternCode::blocks: answer = in_blocks(word, p); break;
            case PatternCode::both:
                answer = (stack & 3U) == 3U;
                stack >>= 2;
                break;
            case PatternCode::either:
                answer = (stack & 3U) != 0;
                stack >>= 2;
                break;
            case PatternCode::per_head: at = word[p.head]; continue;
            case PatternCode::go_on_at: at = word[0]; continue;
        }
        stack = stack << 1 | (answer ? 1U : 0U);
    }
    return (stack & 1U) != 0;
}

// ---- writing it ----------------------------------------------------------------------------------------------------

/// Empty for the absent pattern.
std::vector<std::int64_t> pattern_program(const Pattern& pattern);

/// For nodes: writes instructions one after the other.
class PatternWriter {
public:
    std::vector<std::int64_t> words;

    void write(PatternCode code, const std::vector<std::int64_t>& operands) {
        words.push_back(static_cast<std::int64_t>(code));
        words.push_back(static_cast<std::int64_t>(operands.size()));
        words.insert(words.end(), operands.begin(), operands.end());
    }
    std::int64_t here() const { return static_cast<std::int64_t>(words.size()); }
};

}  // namespace heed
