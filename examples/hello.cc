#include <heed/attention.h>

#include <cstdio>
#include <vector>

int main() {
    // Two tokens of four numbers: your memory, seen as [batch, heads, tokens, size]. heed copies nothing.
    const std::vector<float> tokens = {1, 0, 1, 0,  //
                                       0, 1, 0, 1};
    std::vector<float> mixed(tokens.size());
    const heed::View x(tokens.data(), {1, 1, 2, 4});
    const heed::MutableView out(mixed.data(), {1, 1, 2, 4});

    heed::Context context;  // threads and scratch memory; make one, keep it
    heed::attend(context, x, x, x, out);
    std::printf("every token sees both:  %.4f %.4f | %.4f %.4f\n", mixed[0], mixed[1], mixed[4], mixed[5]);

    heed::attend(context, x, x, x, out, {.causal = true});
    std::printf("none sees the future:   %.4f %.4f | %.4f %.4f\n", mixed[0], mixed[1], mixed[4], mixed[5]);
}
