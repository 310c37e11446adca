#pragma once
/// Positions and long context, measured as ratios within one run: what bench/run shows in its "long" sections.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <heed/context.h>

#include "rounds.h"

namespace heed::bench {

struct LongSettings {
    int threads = 1;
    int rounds = 9;
    bool quick = false;
};

/// One line of the table: a case, its figures in the order of the columns, and what is asked of one of them.
struct LongRow {
    std::string section;
    std::string name;
    std::vector<std::pair<std::string, double>> figures;
    std::string bar{};  ///< "per block <= 1.2"; empty: nothing is asked
    bool met = true;
};
/// Prints it as one line of JSON.
void print(const LongRow& row);

/// `name` of the figure at most (at least) `bar`.
LongRow with_bar(LongRow row, const std::string& name, double value, double bar, bool at_most);

/// Seconds of one call of each body, [body][round]. In each round every body runs in turn, from a different one on,
/// repeated until it takes a few milliseconds: a change of the machine's speed meets all alike.
std::vector<std::vector<double>> interleaved(const LongSettings& settings,
                                             const std::vector<std::function<void()>>& bodies);
double median(std::vector<double> values);
/// The median over the rounds of a's time over b's.
double ratio(const std::vector<double>& a, const std::vector<double>& b);

void linear_against_length(Context& context, const LongSettings& settings);
void linear_against_peak(Context& context, const LongSettings& settings);
void gated_against_length(Context& context, const LongSettings& settings);
void rope_against_memory(Context& context, const LongSettings& settings);
void sparse_against_blocks(Context& context, const LongSettings& settings);
void infini_against_length(Context& context, const LongSettings& settings);
void mla_decoding(Context& context, const LongSettings& settings);

}  // namespace heed::bench
