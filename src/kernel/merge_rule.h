#pragma once
/// How partial results are merged, wherever a softmax was taken in parts: the key splits of a call, its sinks, shared
/// prefixes of a cache, the ranks of a ring.
///
/// A part has a logarithm m, the largest of its scores or its lse, and what it gathered relative to exp(m): the sum of
/// its weights (1 beside an lse) and weighted values. The whole has the largest m, and of each part exp(m_part - m).
/// Kernels of every instruction set include this: always inlined, and no function of the standard library.

namespace heed {

/// The logarithm of two parts together; NaN where either is.
template <class Real>
inline __attribute__((always_inline)) Real merged_logarithm(Real a, Real b) {
    return a != a ? a : b != b ? b : a > b ? a : b;
}

/// What a part counts in the whole, 0 where it saw nothing (m = -infinity). `exp` to the base of the logarithms.
template <class Real, class Exp>
inline __attribute__((always_inline)) Real merge_weight(Real part, Real whole, Exp exp) {
    return part == -static_cast<Real>(__builtin_inf()) ? Real(0) : exp(part - whole);
}

}  // namespace heed
