// heed on an OpenMP team, five lines; TBB's task_arena or at::parallel_for fit in as many.
#include <heed/attention.h>
#include <heed/context.h>

#include <omp.h>

#include <cstdio>
#include <vector>

class OpenMpExecutor final : public heed::Executor {
public:
    int concurrency() override { return omp_get_max_threads(); }
    bool inside() override { return omp_in_parallel() != 0; }
    void run(int wanted, void (*member)(void* job, int w), void* job) override {
#pragma omp parallel num_threads(wanted)
        member(job, omp_get_thread_num());
    }
};

int main() {
    constexpr std::int64_t heads = 8, tokens = 256, size = 64;
    std::vector<float> x(heads * tokens * size);
    for (std::size_t n = 0; n < x.size(); ++n) { x[n] = static_cast<float>(n * 37 % 101) / 50 - 1; }
    const heed::View view(x.data(), {1, heads, tokens, size});
    const auto attend = [&](heed::Context& context) {
        std::vector<float> out(x.size());
        heed::attend(context, view, view, view, heed::MutableView(out.data(), {1, heads, tokens, size}));
        return out;
    };

    omp_set_num_threads(3);
    OpenMpExecutor executor;
    heed::Context theirs(executor);
    heed::Context one(1);
    const bool same = attend(theirs) == attend(one);
    std::printf("%s, %d threads: %s as with one thread\n", theirs.runs_on().c_str(), theirs.threads(),
                same ? "the same bits" : "other numbers");

    int right = 0;
#pragma omp parallel reduction(+ : right)
    right += attend(theirs) == attend(one) ? 1 : 0;  // inside a region: each caller alone
    std::printf("inside a region: %d of %d right\n", right, omp_get_max_threads());
    return same && right == omp_get_max_threads() ? 0 : 1;
}
