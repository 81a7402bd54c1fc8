// Pages: see pages.hpp.
#include "pages.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace core {

bool offer_pages(uint8_t* data, size_t size) {
#if defined(__linux__) && defined(MADV_FREE)
    // Only pages that lie inside: the bytes around them may be the C library's.
    const auto page = uintptr_t(sysconf(_SC_PAGESIZE)),
               begin = (uintptr_t(data) + page - 1) & ~(page - 1);
    const uintptr_t end = (uintptr_t(data) + size) & ~(page - 1);
    return end > begin && madvise(reinterpret_cast<void*>(begin), end - begin, MADV_FREE) == 0;
#else
    (void)data, (void)size;
    return false;
#endif
}

}  // namespace core
