// The hash slot of a key: what decides which node of a Redis Cluster has it.
//
// A pure function.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_KEY_SLOT_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_KEY_SLOT_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace hearth {

inline constexpr uint32_t kHashSlots = 16384;

// Of the text between the first { and the } behind it, where that is not empty; else of the key.
uint16_t KeySlot(absl::string_view key);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_KEY_SLOT_H_
