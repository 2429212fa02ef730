// StorePublisher: stores restore points, and decides which of several callers computes a prefix.
//
// A restore point's manifest is written last. It names every object that the restore point needs,
// and has a reference on each. Thread safety: all methods from any thread, but a session is for one
// thread at a time. Ownership: sessions must not outlive their store. Errors: kInvalidArgument
// (wrong call), kResourceExhausted (full; retry later), kDataLoss (bytes differ from their digest),
// kAborted (same key, different bytes).
#ifndef HEARTH_CACHE_STORE_STORE_STORE_PUBLISHER_H_
#define HEARTH_CACHE_STORE_STORE_STORE_PUBLISHER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/store/store_reader.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"

namespace hearth {

struct PublishObject {
  ObjectId id;
  std::vector<uint64_t> slice_digests;
  bool absent = false;  // true: the caller does not have the object
};

struct PublishSpec {
  Fingerprint fingerprint;  // the model's fingerprint, with its readable fields
  std::string tenant;
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> cuts;
  std::vector<uint32_t> boundaries;
  std::vector<PublishObject> objects;
  Durability durability = Durability::kDefault;
  // Time to live of the restore points, counted from the commit. Zero: the tenant's default. A
  // restore point that exists already gets the later of its old and new expiry. Without a time to
  // live and a default, it keeps its expiry.
  absl::Duration ttl;
  KeepHint hint = {};  // eviction hint; if empty, an existing restore point keeps its hint
  std::function<bool()> stopped = nullptr;  // see PrefixQuery::stopped
  std::string publisher = "";               // the caller's name, which QuarantineResult reports
  std::vector<ChainPtr> chains = {};        // see PrefixQuery::chains
  // The tenant's drop number (LocalStore::DropNumber) when the objects were read from another
  // store. kCancelled: the drop number has changed since.
  std::optional<uint64_t> drop_number = std::nullopt;
};

struct PublishResult {
  Durability durable = Durability::kMemory;  // the durability that was reached
  std::vector<uint32_t> boundaries;          // the boundaries that are stored now
  uint64_t bytes_received = 0;
  std::vector<std::string> notes;  // remarks, such as why a boundary was left out
};

class PublishSession {
 public:
  virtual ~PublishSession() = default;  // without Commit(), nothing is stored
  // Returns the indices of the announced objects that the store does not have. The caller puts
  // exactly these.
  virtual absl::Span<const uint32_t> needed() const = 0;
  // Returns uninitialised memory for the next slice: the slice's final place, if there is space.
  // The memory counts as received before it is allocated. kResourceExhausted names the limit.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocateSlice(size_t bytes) = 0;
  // Takes a whole slice (copies it, or keeps it alive by its owner), and verifies it against the
  // announced digest. Memory that is not from AllocateSlice() is counted here. `digest`: digest of
  // a slice with an owner, if the caller computed it while filling this memory; then the slice is
  // not read again.
  virtual absl::Status PutSlice(uint32_t object, uint32_t layer, SliceView slice,
                                std::optional<uint64_t> digest = std::nullopt) = 0;
  // Stores the restore points; returns after the requested durability is reached. Boundaries with
  // missing objects are left out, with a note.
  virtual absl::StatusOr<PublishResult> Commit() = 0;
  // Commits like Commit(), and calls `done` once, possibly later and from another thread, so that
  // waiting for other machines blocks no thread of the caller. REQUIRES: the session is not used
  // afterwards.
  virtual void CommitThen(std::function<void(absl::StatusOr<PublishResult>)> done) {
    done(Commit());
  }
};

// What a caller should do after a miss, so that each prefix is computed only once.
enum class ClaimRole {
  kNone,     // fetch what is stored and compute the rest, without promising anything
  kWait,     // another caller computes `boundary`: call Claim() again when woken, or at `until`
  kCompute,  // compute and publish until `until`, while others wait; fetch stored tokens first
};
struct ClaimRequest {
  uint32_t above_tokens = 0;  // number of leading tokens that the caller already has
  uint32_t max_tokens = 0;    // see StoreReader::Fetch
  uint32_t min_tokens = 0;    // number of tokens that are worth waiting for, or promising
  // time that the caller needs to compute and publish; zero: it will not publish
  absl::Duration compute_time;
  absl::Time wait_until = absl::InfinitePast();
  uint32_t waited_for = 0;  // boundary for which the caller has waited before; 0: none
  // Called when the caller should ask again: at most once, without a lock held, and never after the
  // ticket is destroyed, except for a call that is running then.
  std::function<void()> wake;
};
struct ClaimDecision {
  ClaimRole role = ClaimRole::kNone;
  uint32_t usable_tokens = 0;  // number of leading tokens that are stored now
  uint32_t boundary = 0;  // kWait: the awaited boundary; kCompute: the highest promised boundary
  // number of leading tokens that are stored or that another caller is computing
  uint32_t matched_tokens = 0;
  absl::Time until;
  // Destroying the ticket ends the wait or the claim. If a claim ends, one of the waiting callers
  // takes over.
  std::shared_ptr<void> ticket;
};

class StorePublisher {
 public:
  virtual ~StorePublisher() = default;

  virtual absl::StatusOr<std::unique_ptr<PublishSession>> Publish(PublishSpec spec) = 0;
  // Decides whether the caller computes a prefix or waits for another caller. REQUIRES: the
  // fingerprint's fields are known (StoreReader::Observe).
  virtual absl::StatusOr<ClaimDecision> Claim(const PrefixQuery& query, ClaimRequest ask) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_PUBLISHER_H_
