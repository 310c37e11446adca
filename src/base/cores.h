#pragma once
#include <string>

namespace heed::detail {

/// CPUs that the control groups of this process allow it to use at a time, rounded up; 0: as many as there are. Version
/// 2 (cpu.max) and version 1 (cpu.cfs_quota_us), each from the process's own group up to the root. `groups` is
/// /proc/self/cgroup and `root` /sys/fs/cgroup, but for tests.
int cpu_quota(const std::string& groups = "/proc/self/cgroup", const std::string& root = "/sys/fs/cgroup");

/// CPUs that some thread of this process may run on, at most the quota. The widest mask counts: OpenMP may have bound
/// the calling thread to one of them (OMP_PROC_BIND).
int usable_cores();

/// Threads of a team that nobody gave a number: the usable cores, or fewer where OMP_NUM_THREADS says so, in its first
/// number.
int default_threads();

}  // namespace heed::detail
