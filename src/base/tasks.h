#pragma once
#include <cstdint>

namespace heed::detail {

/// Whom a job is worth. Waking a thread that sleeps costs its caller some 6 microseconds, and the thread comes 20 late;
/// one that is still awake after the last job is there within a tenth of one.
enum class Effort : std::uint8_t {
    alone,  ///< the caller
    awake,  ///< whoever is awake; where such jobs follow one another closely, workers are woken and stay awake
    wake,   ///< everybody
};

/// The effort for so many operations, at some hundred in a nanosecond.
Effort effort_for(double operations);

/// One of numbered tasks, on thread number `worker` of those that share the job.
using Task = void (*)(void* state, std::int64_t index, int worker);

struct Job {
    Task task = nullptr;
    void* state = nullptr;
    std::int64_t count = 0;
};

/// Tasks of a claim. Small jobs are for few, and for those several tasks at once: claiming each would cost as much as
/// it does. Of very many, claims stay so rare that 64 threads do not wait for the line of the cache they are made in.
inline std::int64_t tasks_at_once(std::int64_t count, bool small, int threads) {
    const std::int64_t at_once = count / ((small ? 3 : 64) * std::int64_t{threads});
    return at_once < 1 ? 1 : at_once;
}

constexpr int small_job_threads = 8;

}  // namespace heed::detail
