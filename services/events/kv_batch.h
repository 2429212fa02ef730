// KvBatch: events about blocks of KV in the bytes that vLLM publishes and routers read.
//
// A payload is MessagePack: [seconds, [event, ...], rank], an event an array that begins with its
// name. vLLM itself went over to maps for events; all known readers still take arrays, and older
// ones nothing else. Pure functions.
#ifndef HEARTH_SERVICES_EVENTS_KV_BATCH_H_
#define HEARTH_SERVICES_EVENTS_KV_BATCH_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace hearth {

struct BlocksStored {
  std::vector<uint64_t> ids;  // one after the other in a prompt
  uint64_t parent_id = 0;     // of the block before the first; 0: there is none
  std::vector<uint32_t> token_ids;
  uint32_t block_tokens = 0;
};
struct BlocksRemoved {
  std::vector<uint64_t> ids;
};
struct AllBlocksCleared {};
using KvEvent = std::variant<AllBlocksCleared, BlocksStored, BlocksRemoved>;

struct KvLabels {
  std::string medium;     // where the blocks are: CPU, GPU, ...
  std::string lora_name;  // empty: none
};

// Of a payload: about 80 KiB. A subscriber that reads nothing has at most so many of them waiting
// as its socket's limit says.
inline constexpr size_t kMaxBatchTokens = 16 << 10;
inline constexpr size_t kMaxBatchRemovals = 4 << 10;

// The events in order, in as few payloads as the limits allow: longer events are divided.
std::vector<std::string> EncodeBatches(const std::vector<KvEvent>& events, const KvLabels& labels,
                                       absl::Time now);
// A payload of no events.
std::string EncodeEmptyBatch(absl::Time now);

}  // namespace hearth

#endif  // HEARTH_SERVICES_EVENTS_KV_BATCH_H_
