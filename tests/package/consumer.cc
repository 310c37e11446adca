// A user's program: attention of two tokens over themselves, and an error that crosses the library's border.
#include <heed/attention.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
    const std::vector<float> tokens = {1, 0, 1, 0, 0, 1, 0, 1};
    std::vector<float> out(tokens.size());
    const heed::View x(tokens.data(), {1, 1, 2, 4});
    const heed::MutableView y(out.data(), {1, 1, 2, 4});
    heed::Context context(1);
    heed::attend(context, x, x, x, y);

    const double expected = 1 / (1 + std::exp(-1.0));  // scores 2/sqrt(4) and 0
    if (std::abs(out[0] - expected) > 1e-6 || std::abs(out[1] - (1 - expected)) > 1e-6) {
        std::printf("expected %.6f %.6f, got %.6f %.6f\n", expected, 1 - expected, static_cast<double>(out[0]),
                    static_cast<double>(out[1]));
        return 1;
    }
    try {
        heed::attend(context, x, x, heed::View(tokens.data(), {1, 1, 4, 2}), y);
    } catch (const heed::Error& error) {
        std::printf("refused as it should be: %s\n", error.what());
        return 0;
    }
    std::printf("four values for two keys were accepted\n");
    return 1;
}
