#include "base/torch_team.h"

#include <atomic>
#include <mutex>

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

namespace heed::detail {
namespace {

std::atomic<int> forks{0};  ///< that lie between the first process and this one

void count_forks() {
    static const int counting = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
    static_cast<void>(counting);
}

/// Libraries loaded so far: changes with every one that comes.
unsigned long long libraries_loaded() {
    unsigned long long loaded = 0;
    const auto first = [](dl_phdr_info* info, std::size_t size, void* to) {
        constexpr std::size_t needed = offsetof(dl_phdr_info, dlpi_adds) + sizeof(info->dlpi_adds);
        *static_cast<unsigned long long*>(to) = size >= needed ? info->dlpi_adds : 1;
        return 1;
    };
    dl_iterate_phdr(first, &loaded);
    return loaded;
}

/// What is asked of OpenMP's and PyTorch's libraries.
struct Functions {
    void (*parallel)(void (*member)(void*), void* job, unsigned threads, unsigned flags) = nullptr;
    int (*in_parallel)() = nullptr;
    int (*thread_num)() = nullptr;
    int (*num_threads)() = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    return function != nullptr;
}

const char* file_of(const void* function) {
    Dl_info info{};
    return function != nullptr && dladdr(function, &info) != 0 ? info.dli_fname : nullptr;
}

bool same_library(const void* a, const void* b) {
    Dl_info of_a{}, of_b{};
    return dladdr(a, &of_a) != 0 && dladdr(b, &of_b) != 0 && of_a.dli_fbase == of_b.dli_fbase;
}

/// GOMP_parallel is what GCC's code calls; LLVM's and Intel's libraries have it as well.
bool find_functions(Functions& found) {
    void* torch = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);  // kept: its functions stay valid
    if (torch == nullptr) { return false; }
    // The first is what PyTorch's own calls are bound to, the second what it depends on, by whatever name.
    if (!find(RTLD_DEFAULT, "GOMP_parallel", found.parallel) && !find(torch, "GOMP_parallel", found.parallel)) {
        return false;
    }
    const auto* parallel = reinterpret_cast<const void*>(found.parallel);
    // PyTorch made by Clang may run on another library than the one with this name: two at once can deadlock.
    const void* clang = dlsym(torch, "__kmpc_fork_call");
    if (clang != nullptr && !same_library(clang, parallel)) { return false; }
    const char* file = file_of(parallel);
    void* openmp = file == nullptr ? nullptr : dlopen(file, RTLD_NOW | RTLD_NOLOAD);
    if (openmp == nullptr) { return false; }
    // at::get_num_threads(); the first call on a thread tells OpenMP what torch.set_num_threads said.
    return find(openmp, "omp_in_parallel", found.in_parallel) && find(openmp, "omp_get_thread_num", found.thread_num) &&
           (find(torch, "_ZN2at15get_num_threadsEv", found.num_threads) ||
            find(openmp, "omp_get_max_threads", found.num_threads));
}

class Team final : public TorchTeam {
public:
    explicit Team(const Functions& functions) : functions_(functions), forks_(forks.load()) {}

    bool usable() const override { return forks.load(std::memory_order_relaxed) == forks_; }
    int concurrency() override { return functions_.num_threads(); }
    bool inside() override { return functions_.in_parallel() != 0; }

    /// Always all of them: for a region of fewer, the library would end the others and start them again for PyTorch's
    /// next.
    void run(int wanted, void (*member)(void* job, int w), void* job) override {
        const int threads = concurrency();
        if (threads <= 1 || wanted <= 1 || !usable() || inside()) { return member(job, 0); }
        Region region{member, job, wanted, functions_.thread_num};
        functions_.parallel(
            [](void* of) {
                const auto& r = *static_cast<Region*>(of);
                const int w = r.thread_num();
                if (w < r.wanted) { r.member(r.job, w); }
            },
            &region, static_cast<unsigned>(threads), 0);
    }

private:
    struct Region {
        void (*member)(void* job, int w);
        void* job;
        int wanted;
        int (*thread_num)();
    };

    Functions functions_;
    int forks_;
};

}  // namespace

TorchTeam* torch_team() {
#if defined(__SANITIZE_THREAD__)
    return nullptr;  // how OpenMP's threads wait for each other is invisible to it
#else
    // Never destroyed: at exit another thread may still be inside a call.
    static std::mutex& mutex = *new std::mutex;
    static std::atomic<Team*> team{nullptr};
    static std::atomic<unsigned long long> looked_at{0};
    if (Team* found = team.load(std::memory_order_acquire)) { return found; }
    const unsigned long long loaded = libraries_loaded();
    if (looked_at.load(std::memory_order_relaxed) == loaded) { return nullptr; }
    const std::lock_guard guard(mutex);
    if (Team* found = team.load(std::memory_order_acquire)) { return found; }
    count_forks();
    Functions functions;
    if (find_functions(functions)) { team.store(new Team(functions), std::memory_order_release); }
    looked_at.store(loaded, std::memory_order_relaxed);
    return team.load(std::memory_order_acquire);
#endif
}

}  // namespace heed::detail
