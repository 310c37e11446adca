// What heed asks of PyTorch's library, and what the test does with the team behind its back.
#include <omp.h>

namespace at {
__attribute__((visibility("default"))) int get_num_threads();
int get_num_threads() { return omp_get_max_threads(); }
}  // namespace at

extern "C" {
__attribute__((visibility("default"))) void set_num_threads(int threads);
__attribute__((visibility("default"))) int region_size();
__attribute__((visibility("default"))) void call_in_region(void (*function)(void*, int), void* state);
__attribute__((visibility("default"))) int inside_region();

void set_num_threads(int threads) { omp_set_num_threads(threads); }
int inside_region() { return omp_in_parallel(); }
int region_size() {
    int size = 0;
#pragma omp parallel
    {
#pragma omp atomic
        ++size;
    }
    return size;
}
void call_in_region(void (*function)(void*, int), void* state) {
#pragma omp parallel
    function(state, omp_get_thread_num());
}
}
