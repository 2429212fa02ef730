// Warmer: gets prompts into the store, one at a time, and skips those that are stored.
//
// KeptBoundaries, the same here and in the worker, says which boundaries to store; Explain, called
// before and after, says which ones are stored.
// Thread safety: none. Ownership: borrows the stubs and the console.
#ifndef HEARTH_SERVICES_HEARTHCTL_WARMER_H_
#define HEARTH_SERVICES_HEARTHCTL_WARMER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cache_store.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "services/cli/connection.h"
#include "services/cli/console.h"
#include "services/hearthctl/warm_file.h"

namespace hearth {

struct WarmResult {
  uint32_t prompt_tokens = 0;
  uint32_t computed_tokens = 0;  // 0 when everything was stored already
  std::vector<uint32_t> wanted;  // boundaries worth keeping, ascending
  std::vector<uint32_t> stored;  // those of them that can be restored now
  std::vector<uint32_t> pinned;  // those of `stored` that are pinned
  std::string note;              // why something is missing
  // Boundaries that were asked for are known even where the rest failed.
  bool knows_wanted = false;
  std::string pin_failure;  // which of `stored` are not pinned and why, when pins were asked

  bool complete() const { return stored.size() == wanted.size(); }
  bool all_pinned() const { return !pinned.empty() && pinned.size() == stored.size(); }
};

class Warmer {
 public:
  // `store` null: no pins. `console`: where it shows how far a prompt is.
  Warmer(v1::Inference::Stub* worker, PeerFlags worker_flags, v1::CacheStore::Stub* store,
         PeerFlags store_flags, uint32_t chunk_tokens, v1::Durability durability, Console* console)
      : worker_(worker),
        worker_flags_(std::move(worker_flags)),
        store_(store),
        store_flags_(std::move(store_flags)),
        chunk_tokens_(chunk_tokens),
        durability_(durability),
        console_(console) {}

  // Fills `result` as far as it came. A stored boundary that cannot be pinned is no error: the
  // result reports it, and the others are pinned.
  absl::Status Warm(const WarmEntry& entry, bool pin, WarmResult* result);

 private:
  absl::Status FindWanted(const WarmEntry& entry, WarmResult* result);
  absl::StatusOr<v1::ExplainResponse> FindStored(const WarmEntry& entry, WarmResult* result);
  absl::Status Prefill(const WarmEntry& entry, WarmResult* result);
  // Pins each boundary worth keeping by itself: the pin of a longer one does not keep the remainder
  // that ends at a breakpoint below it.
  void PinStored(const v1::ExplainResponse& explained, WarmResult* result);
  absl::Status Pin(const v1::BoundaryInfo& boundary);

  v1::Inference::Stub* const worker_;
  const PeerFlags worker_flags_;
  v1::CacheStore::Stub* const store_;
  const PeerFlags store_flags_;
  const uint32_t chunk_tokens_;
  const v1::Durability durability_;
  Console* const console_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_WARMER_H_
