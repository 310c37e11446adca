#include "conformance/case.h"

#include "support/random.h"

#include <cstdlib>

namespace heed::conformance {
namespace {

constexpr std::uint64_t table_seed = 20170612;
constexpr int random_cases = 2400;
/// Multiplications of one forward pass that a case may take: keeps the table near a minute in plain loops.
constexpr std::int64_t affordable = 1'500'000;
/// The few cases that exist to complete a pair may cost more.
constexpr std::int64_t affordable_to_cover = 4'000'000;

// Shapes of allow, bias and keep: a capital is the full extent, 1 is broadcast, a small letter is the full extent with
// stride 0.
const std::array<AxisInfo, axes>& table() {
    static const std::array<AxisInfo, axes> infos{{
        {"dtype", {"f32", "bf16", "f16"}},
        {"out", {"same", "f32"}},
        {"lse", {"f32", "f64"}},
        {"layout", {"BHTD", "BTHD", "inside", "every-other", "reversed", "mirrored", "mixed"}},
        {"heads", {"1/1", "2/2", "4/2", "4/1", "6/3", "3/1"}},
        {"B", {"1", "2", "3"}},
        {"T", {"0", "1", "2", "3", "5", "7", "16", "17", "31", "33", "64", "65", "97", "130", "257"}},
        {"S", {"0", "1", "2", "3", "5", "7", "16", "17", "31", "33", "64", "65", "97", "130", "257"}},
        {"D", {"1", "3", "8", "16", "24", "33", "64", "80", "128", "192"}},
        {"E", {"1", "3", "8", "16", "24", "33", "64", "80", "128", "192"}},
        {"scale", {"default", "0.3", "-0.2", "0"}},
        {"causal", {"no", "yes"}},
        {"align", {"bottom_right", "top_left"}},
        {"window", {"none", "0,0", "3,-1", "-1,2", "5,1", "40,0"}},
        {"allow", {"none", "BHTS", "B11S", "11TS", "1H1S", "BhTS", "1111"}},
        {"pattern",
         {"none", "causal&window", "window|global", "prefix|causal", "document&causal", "strided", "fixed&causal",
          "dilated", "random_blocks|window", "blocks", "per_head", "padding"}},
        {"bias", {"none", "BHTS", "1HTS", "11TS", "B11S", "BHT1", "1111", "bHTS"}},
        {"bias_dtype", {"f32", "bf16", "f16", "f64"}},
        {"alibi", {"none", "H", "BH"}},
        {"softcap", {"0", "2", "30"}},
        {"sinks", {"none", "f32", "f64", "some -inf"}},
        {"lengths", {"none", "keys", "queries", "both", "extreme", "packed", "packed with gaps"}},
        {"positions", {"none", "decode", "permuted keys", "with gaps", "permuted both"}},
        {"dropout", {"none", "p=0", "0.1", "0.5", "keep BHTS", "keep 1HT1"}},
        {"dlse", {"none", "given"}},
        {"inputs", {"normal", "large", "equal", "far bias", "planted", "NaN in q", "NaN in k", "NaN in v"}},
    }};
    return infos;
}

int values(int axis) { return static_cast<int>(table()[static_cast<std::size_t>(axis)].values.size()); }

Case draw(testing::Random& random, const Case& fixed, std::int64_t budget) {
    for (;;) {
        Case c = fixed;
        for (int axis = 0; axis < axes; ++axis) {
            int& choice = c.choice[static_cast<std::size_t>(axis)];
            if (choice < 0) { choice = static_cast<int>(random.below(values(axis))); }
        }
        if (c.cost() <= budget) { return c; }
    }
}

Case nothing_fixed() {
    Case c;
    c.choice.fill(-1);
    return c;
}

/// Which pairs have been seen.
class PairTable {
public:
    PairTable() {
        for (int a = 0; a < axes; ++a) {
            for (int b = 0; b < a; ++b) {
                start_[index(a, b)] = seen_.size();
                seen_.resize(seen_.size() + static_cast<std::size_t>(values(a) * values(b)), 0);
            }
        }
    }
    void add(const Case& c) {
        for (int a = 0; a < axes; ++a) {
            for (int b = 0; b < a; ++b) {
                at(a, c.choice[static_cast<std::size_t>(a)], b, c.choice[static_cast<std::size_t>(b)]) = 1;
            }
        }
    }
    char& at(int a, int value_a, int b, int value_b) {
        return seen_[start_[index(a, b)] + static_cast<std::size_t>(value_a * values(b) + value_b)];
    }
    Coverage coverage() const {
        Coverage result;
        result.pairs = static_cast<std::int64_t>(seen_.size());
        for (const char seen : seen_) { result.covered += seen; }
        return result;
    }

private:
    static std::size_t index(int a, int b) { return static_cast<std::size_t>(a * axes + b); }
    std::vector<char> seen_;
    std::array<std::size_t, static_cast<std::size_t>(axes* axes)> start_{};
};

std::vector<Case> make_cases() {
    testing::Random random(table_seed);
    std::vector<Case> cases;
    PairTable pairs;
    const auto add = [&](Case c) {
        c.number = static_cast<int>(cases.size());
        pairs.add(c);
        cases.push_back(c);
    };
    for (int n = 0; n < random_cases; ++n) { add(draw(random, nothing_fixed(), affordable)); }
    for (int a = 0; a < axes; ++a) {
        for (int b = 0; b < a; ++b) {
            for (int value_a = 0; value_a < values(a); ++value_a) {
                for (int value_b = 0; value_b < values(b); ++value_b) {
                    if (pairs.at(a, value_a, b, value_b) != 0) { continue; }
                    Case fixed = nothing_fixed();
                    fixed.choice[static_cast<std::size_t>(a)] = value_a;
                    fixed.choice[static_cast<std::size_t>(b)] = value_b;
                    add(draw(random, fixed, affordable_to_cover));
                }
            }
        }
    }
    return cases;
}

}  // namespace

const AxisInfo& info(Axis axis) { return table()[static_cast<std::size_t>(axis)]; }

std::int64_t Case::integer(Axis axis) const { return std::strtoll((*this)[axis].data(), nullptr, 10); }

std::int64_t Case::query_heads() const { return integer(Axis::heads); }

std::int64_t Case::kv_heads() const {
    const std::string_view text = (*this)[Axis::heads];
    return std::strtoll(text.data() + text.find('/') + 1, nullptr, 10);
}

std::int64_t Case::cost() const {
    const bool is_packed = (*this)[Axis::lengths].substr(0, 6) == "packed";
    return (is_packed ? 1 : integer(Axis::batch)) * query_heads() * integer(Axis::queries) * integer(Axis::keys) *
           (integer(Axis::head_size) + integer(Axis::value_size));
}

std::string Case::describe() const {
    std::string text = "case " + std::to_string(number) + ":";
    for (int axis = 0; axis < axes; ++axis) {
        const std::string_view value = (*this)[static_cast<Axis>(axis)];
        if (value == "none" || value == "no") { continue; }
        if (static_cast<Axis>(axis) == Axis::bias_dtype && (*this)[Axis::bias] == "none") { continue; }
        const bool spaced = value.find(' ') != std::string_view::npos;
        text += " " + std::string(table()[static_cast<std::size_t>(axis)].name) + "=";
        text += spaced ? "'" + std::string(value) + "'" : std::string(value);
    }
    return text;
}

const std::vector<Case>& all_cases() {
    static const std::vector<Case> cases = make_cases();
    return cases;
}

Coverage pair_coverage(const std::vector<Case>& cases) {
    PairTable pairs;
    for (const Case& c : cases) { pairs.add(c); }
    return pairs.coverage();
}

}  // namespace heed::conformance
