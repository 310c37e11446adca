#pragma once
#include "base/attention_problem.h"
#include "base/pool.h"

#include <span>
#include <string>
#include <string_view>

namespace heed::cpu {

/// One instruction set's attention.
struct Attention {
    std::string_view name;
    std::string_view what;
    std::string (*declines)(const AttentionProblem& problem);
    void (*forward)(detail::Pool& pool, const AttentionProblem& problem);
    void (*backward)(detail::Pool& pool, const AttentionProblem& problem);
    void (*weights)(const AttentionProblem& problem, detail::Scratch& scratch, std::int64_t b, std::int64_t h,
                    std::span<const std::int64_t> rows, std::int64_t stride, float* narrow, double* wide);
};

/// Those built into this library, best first.
std::span<const Attention> attention_list();

}  // namespace heed::cpu
