#pragma once
/// The naive method: whole score matrix, softmax, product; written from the public header and from nothing else. In
/// double it is a second opinion on the reference; in float it is the yardstick of tolerance.h.

#include "conformance/problem.h"

namespace heed::conformance {

/// Everything a call gives, row-major, as double. What was not asked for is empty.
struct Results {
    std::vector<double> out{}, lse{}, dq{}, dk{}, dv{}, dbias{}, dsinks{}, dslopes{};

    static constexpr int count = 8;
    static constexpr const char* names[count] = {"out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "dalibi_slopes"};
    std::vector<double>& operator[](int n);
    const std::vector<double>& operator[](int n) const { return const_cast<Results&>(*this)[n]; }
};

struct Naive {
    Results results;
    Results magnitude;  ///< the same with every term's absolute value
    double largest_score = 0;
};

Naive naive_double(const Problem& problem);
/// Sums in float; results (and, where tolerance.h says so, weights) rounded to the storage type.
Naive naive_float(const Problem& problem);

}  // namespace heed::conformance
