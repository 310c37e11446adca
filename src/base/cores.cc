#include "base/cores.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <sched.h>

namespace heed::detail {
namespace {

/// CPUs of "quota period"; 0 where there is no limit or no number.
int cpus_of(const std::string& quota, const std::string& period) {
    char* end = nullptr;
    const double allowed = std::strtod(quota.c_str(), &end);  // "max" and -1: no limit
    const double of = std::strtod(period.c_str(), nullptr);
    if (end == quota.c_str() || !(allowed > 0) || !(of > 0)) { return 0; }
    return static_cast<int>(std::min(4096.0, std::ceil(allowed / of)));
}

std::string first_word(const std::string& file) {
    std::ifstream in(file);
    std::string word;
    in >> word;
    return word;
}

int quota_of_folder(const std::string& folder, bool version2) {
    if (version2) {
        std::ifstream in(folder + "/cpu.max");
        std::string quota, period;
        in >> quota >> period;
        return cpus_of(quota, period);
    }
    return cpus_of(first_word(folder + "/cpu.cfs_quota_us"), first_word(folder + "/cpu.cfs_period_us"));
}

int smaller_limit(int a, int b) { return a == 0 ? b : b == 0 ? a : std::min(a, b); }

/// The least of a group and those above it. In a container the path may be the host's, of which only the root shows.
int quota_upwards(const std::string& root, std::string path, bool version2) {
    int least = 0;
    for (;;) {
        while (path.ends_with('/')) { path.pop_back(); }
        least = smaller_limit(least, quota_of_folder(root + path, version2));
        if (path.empty()) { return least; }
        path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
}

bool names_cpu(const std::string& controllers) { return ("," + controllers + ",").find(",cpu,") != std::string::npos; }

int cpus_in_mask(pid_t thread) {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(thread, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

}  // namespace

int cpu_quota(const std::string& groups, const std::string& root) {
    std::ifstream in(groups);
    int least = 0;
    for (std::string line; std::getline(in, line);) {  // number:controllers:path
        const std::size_t first = line.find(':');
        const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) { continue; }
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const std::string path = line.substr(second + 1);
        if (controllers.empty()) {
            least = smaller_limit(least, quota_upwards(root, path, true));
        } else if (names_cpu(controllers)) {
            least = smaller_limit(least, quota_upwards(root + "/" + controllers, path, false));
            if (controllers != "cpu") { least = smaller_limit(least, quota_upwards(root + "/cpu", path, false)); }
        }
    }
    return least;
}

int usable_cores() {
    int widest = cpus_in_mask(0);
    std::error_code error;
    for (std::filesystem::directory_iterator at("/proc/self/task", error), end; !error && at != end;
         at.increment(error)) {
        const int thread = std::atoi(at->path().filename().c_str());
        if (thread > 0) { widest = std::max(widest, cpus_in_mask(thread)); }
    }
    if (widest == 0) { widest = static_cast<int>(std::thread::hardware_concurrency()); }
    return std::max(1, smaller_limit(widest, cpu_quota()));
}

int default_threads() {
    const char* asked = std::getenv("OMP_NUM_THREADS");
    const long number = asked == nullptr ? 0 : std::strtol(asked, nullptr, 10);
    return number > 0 ? static_cast<int>(std::min<long>(number, usable_cores())) : usable_cores();
}

}  // namespace heed::detail
