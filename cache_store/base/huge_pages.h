// HugePages: whether a store's memory should use huge pages.
#ifndef HEARTH_CACHE_STORE_BASE_HUGE_PAGES_H_
#define HEARTH_CACHE_STORE_BASE_HUGE_PAGES_H_

namespace hearth {

// kAuto and kOn ask the kernel for huge pages. If the kernel grants none, only kOn warns.
enum class HugePages { kOff, kAuto, kOn };

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_HUGE_PAGES_H_
