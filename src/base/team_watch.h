#pragma once
#include <chrono>

namespace heed::detail {

/// Whether somebody else's threads are worth waiting for. A run on a team ends when all its members have come and gone,
/// those that found nothing to do included: it may be late by what one needs to wake up, or until it gets back the core
/// that another program has.
class TeamWatch {
public:
    using Clock = std::chrono::steady_clock;

    bool takes_small_jobs(Clock::time_point now = Clock::now()) const {
        return now >= small_alone_until_ && (now >= asleep_until_ || now - last_end_ < awake);
    }
    bool takes_large_jobs(Clock::time_point now = Clock::now()) const { return now >= own_threads_until_; }

    void begins(Clock::time_point now = Clock::now()) { rested_ = now - last_end_ >= awake; }

    /// The run is over, `late` after its last task.
    void has_run(bool small, Clock::duration late, Clock::time_point now = Clock::now()) {
        constexpr std::chrono::microseconds patience{10};
        constexpr std::chrono::milliseconds very_late{1};
        constexpr int rest = 50;
        last_end_ = now;
        if (rested_) {  // they may have slept, and are awake for the next
            if (small && late > patience) { asleep_until_ = now + rest * late; }
            return;
        }
        if (small && late > patience) { small_alone_until_ = now + rest * late; }
        // Once may be an accident: own threads beside a team that polls have no core to themselves.
        in_a_row_ = late > very_late ? in_a_row_ + 1 : 0;
        if (in_a_row_ >= enough) { own_threads_until_ = now + rest * late; }
    }

private:
    static constexpr std::chrono::milliseconds awake{2};  ///< for at least so long members poll after a run
    static constexpr int enough = 3;
    Clock::time_point last_end_{}, small_alone_until_{}, asleep_until_{}, own_threads_until_{};
    bool rested_ = true;
    int in_a_row_ = 0;
};

}  // namespace heed::detail
