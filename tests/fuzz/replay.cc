// Stands in for libFuzzer where the compiler has none: runs the files of a corpus through the target, then a given
// number of mutations of them, the same ones each time.
//
//     fuzz_NAME CORPUS_FOLDER MUTATIONS

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

std::vector<Bytes> read_corpus(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> paths(std::filesystem::directory_iterator(folder), {});
    std::sort(paths.begin(), paths.end());  // folders list in any order
    std::vector<Bytes> corpus;
    for (const auto& path : paths) {
        std::ifstream file(path, std::ios::binary);
        corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return corpus;
}

class Mutator {
public:
    explicit Mutator(const std::vector<Bytes>& corpus) : corpus_(corpus) {}

    Bytes next() {
        Bytes bytes = corpus_[below(corpus_.size())];
        for (std::size_t changes = 1 + below(4); changes > 0; --changes) { change(bytes); }
        return bytes;
    }

private:
    // std::mt19937_64 gives the same numbers everywhere; the library's distributions do not.
    std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }
    std::uint8_t interesting() {
        static constexpr char bytes[] = "{}[]\",:0123456789-.eE \\u\n\x7f\x80\xff";
        return static_cast<std::uint8_t>(bytes[below(sizeof(bytes))]);  // the final zero included
    }
    static auto at(Bytes& bytes, std::size_t index) { return bytes.begin() + static_cast<std::ptrdiff_t>(index); }

    void change(Bytes& bytes) {
        const std::size_t place = below(bytes.size());
        const std::size_t length = std::min(bytes.size() - place, 1 + below(16));
        switch (bytes.empty() ? 4 : below(9)) {
            case 0: bytes[place] = static_cast<std::uint8_t>(bytes[place] ^ (1U << below(8))); break;
            case 1: bytes[place] = static_cast<std::uint8_t>(random_()); break;
            case 2: bytes[place] = interesting(); break;
            case 3: {  // a piece over another
                const std::size_t to = below(bytes.size() - length + 1);
                const Bytes piece(at(bytes, place), at(bytes, place + length));
                std::copy(piece.begin(), piece.end(), at(bytes, to));
                break;
            }
            case 4: bytes.insert(at(bytes, place), interesting()); break;
            case 5: bytes.erase(at(bytes, place), at(bytes, place + length)); break;
            case 6: bytes.resize(place); break;
            case 7: {  // a piece again, elsewhere: keys that are there twice
                const Bytes piece(at(bytes, place), at(bytes, place + length));
                const std::size_t to = below(bytes.size() + 1);
                bytes.insert(at(bytes, to), piece.begin(), piece.end());
                break;
            }
            default: {  // the end of another file
                const Bytes& other = corpus_[below(corpus_.size())];
                const std::size_t from = below(other.size());
                bytes.resize(place);
                bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
            }
        }
    }

    const std::vector<Bytes>& corpus_;
    std::mt19937_64 random_{20170612};
};

/// From memory of exactly the input's size, so that a sanitizer sees one byte too many.
void run(const Bytes& input) {
    const Bytes exact(input.begin(), input.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) {
        std::fprintf(stderr, "usage: %s CORPUS_FOLDER MUTATIONS\n", arguments[0]);
        return 2;
    }
    const std::vector<Bytes> corpus = read_corpus(arguments[1]);
    if (corpus.empty()) {
        std::fprintf(stderr, "%s: no files in %s\n", arguments[0], arguments[1]);
        return 1;
    }
    for (const Bytes& input : corpus) { run(input); }
    const long mutations = std::strtol(arguments[2], nullptr, 10);
    Mutator mutator(corpus);
    for (long n = 0; n < mutations; ++n) { run(mutator.next()); }
    std::printf("%zu files and %ld mutations of them\n", corpus.size(), mutations);
    return 0;
}
