// HugePages: whether a store's memory should use huge pages.
#ifndef HEARTH_CACHE_STORE_BASE_HUGE_PAGES_H_
#define HEARTH_CACHE_STORE_BASE_HUGE_PAGES_H_

namespace hearth {

// kAuto and kOn ask the kernel, which may grant none; with kOn that is a warning.
enum class HugePages { kOff, kAuto, kOn };

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_HUGE_PAGES_H_
