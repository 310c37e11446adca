#pragma once
#include <heed/positions.h>

#include <cstdint>
#include <string>
#include <vector>

namespace heed::cli {

/// One way to rotate, and what becomes of it at the length asked for.
struct RopeCurve {
    std::string name;
    Rope rope;
    RopeTable table;           ///< for `length` of the report
    std::int64_t kept = 0;     ///< pairs that turn as they did in training
    std::int64_t blended = 0;  ///< slowed, but by less than length/trained
    std::int64_t slowed = 0;   ///< slowed by length/trained or more, or standing still
    std::int64_t unseen = 0;   ///< pairs that reach angles that they never had in training

    /// Score of two equal vectors at a distance, over their score at distance 0 without scaling: A^2 times the mean of
    /// cos(distance * frequency).
    double score(std::int64_t distance) const;
};

struct RopeReport {
    std::string source;  ///< of the settings, for the title
    std::int64_t trained = 0;
    std::int64_t length = 0;
    Rope plain;                  ///< what training used
    std::vector<double> before;  ///< its frequencies
    std::vector<RopeCurve> curves;

    std::int64_t pairs() const { return static_cast<std::int64_t>(before.size()); }
    /// Does a pair come round within the trained length? Then it has seen every angle.
    bool comes_round(std::size_t pair) const;
    void add(const std::string& name, const Rope& rope);
};

std::string to_text(const RopeReport& report);
std::string to_json(const RopeReport& report);
std::string to_svg(const RopeReport& report);

}  // namespace heed::cli
