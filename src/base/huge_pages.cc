#include "base/huge_pages.h"

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace heed::detail {

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
