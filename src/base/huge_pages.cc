#include "base/huge_pages.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace heed::detail {
namespace {

class HugeBlock {
public:
    explicit HugeBlock(std::size_t bytes)
        : bytes_((bytes + huge_page - 1) / huge_page * huge_page),
          memory_(static_cast<std::byte*>(::operator new (bytes_, std::align_val_t{huge_page}))) {
        prefer_huge_pages(memory_, bytes_);
    }
    ~HugeBlock() { ::operator delete (memory_, std::align_val_t{huge_page}); }
    HugeBlock(const HugeBlock&) = delete;
    HugeBlock& operator=(const HugeBlock&) = delete;

    /// Null where there is no room left.
    void* take(std::size_t bytes) {
        if (bytes > bytes_ - used_) { return nullptr; }
        void* at = memory_ + used_;
        used_ += std::min(bytes_ - used_, (bytes + 63) / 64 * 64);
        return at;
    }

private:
    std::size_t bytes_;
    std::size_t used_ = 0;
    std::byte* memory_;
};

constexpr std::size_t shared_block = std::size_t{32} << 20, own_block = std::size_t{8} << 20;

/// The block that small pieces come from, while one of them lives.
struct CurrentBlock {
    std::mutex mutex;
    std::weak_ptr<HugeBlock> block;
};
CurrentBlock& current_block() {
    static CurrentBlock current;
    return current;
}

}  // namespace

std::shared_ptr<void> lasting_memory(std::size_t bytes) {
    const auto piece = [&](const std::shared_ptr<HugeBlock>& block) {
        return std::shared_ptr<void>(block, block->take(bytes));
    };
    if (bytes >= own_block) { return piece(std::make_shared<HugeBlock>(bytes)); }
    CurrentBlock& current = current_block();
    const std::lock_guard guard(current.mutex);
    if (const auto block = current.block.lock()) {
        if (std::shared_ptr<void> memory = piece(block); memory.get() != nullptr) { return memory; }
    }
    const auto fresh = std::make_shared<HugeBlock>(shared_block);
    current.block = fresh;
    return piece(fresh);
}

void prefer_huge_pages(void* memory, std::size_t bytes) {
#if defined(__linux__)
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const std::uintptr_t begin = (address + huge_page - 1) / huge_page * huge_page;
    const std::uintptr_t end = (address + bytes) / huge_page * huge_page;
    if (begin < end) { static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE)); }
#else
    static_cast<void>(memory);
    static_cast<void>(bytes);
#endif
}

}  // namespace heed::detail
