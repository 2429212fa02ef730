// HugePages: whether the store's RAM tier should use huge pages.
#ifndef HEARTH_CACHE_STORE_BASE_HUGE_PAGES_H_
#define HEARTH_CACHE_STORE_BASE_HUGE_PAGES_H_

namespace hearth {

// kAuto and kOn request huge pages from the kernel. If the kernel grants no huge pages, kOn causes
// a warning, and kAuto does not.
enum class HugePages { kOff, kAuto, kOn };

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_HUGE_PAGES_H_
