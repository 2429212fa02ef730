// PublishContent, the objects of a publish, and PublishPlan, the decisions of its commit. Plain
// values.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_PLAN_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/catalog/stored_object.h"
#include "cache_store/store/background/manifest_writer.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

// One object of a publish.
struct PublishItem {
  const KeyedSegment* segment = nullptr;
  const StoredObject* object = nullptr;  // held; null until the store has it or commit makes it
  bool needed = false;
  bool lost = false;  // quarantined since it was promised
  std::vector<uint32_t> layers;
  uint64_t slice_bytes = 0;
  std::vector<SliceView> staged;  // by place in `layers`
  uint32_t staged_slices = 0;
  bool complete() const { return needed && staged_slices == layers.size(); }
};

// Announced and sent by one publisher.
struct PublishContent {
  // The cuts in the key of the boundary's restore point.
  std::vector<uint32_t> CutsUpTo(uint32_t boundary) const;

  PublishSpec spec;
  std::shared_ptr<const KnownFingerprint> model;
  PromptChain chain;
  std::vector<PublishItem> items;  // as spec.objects
  // By boundary of the spec: its items, in NeededObjects order.
  std::vector<std::vector<size_t>> needs;
};

// A boundary that a commit will show.
struct PublishBoundary {
  uint32_t boundary = 0;
  const KeyedSegment* segment = nullptr;
  std::vector<size_t> items;  // NeededObjects order
  uint64_t number = 0;        // of its restore point
  uint64_t manifest = 0;      // its number on disk
  bool held = false;          // a restore point exists already, and is kept from eviction
  bool write = false;         // its manifest is to be written
  absl::Time expires;
};

// The decisions of one commit, made between its two turns under the lock.
struct PublishPlan {
  Durability level = Durability::kMemory;
  std::vector<PublishBoundary> boundaries;
  std::vector<std::string> notes;
  absl::Time expires;                        // of what is new
  std::vector<uint64_t> newly_durable_pins;  // pinned while they were in RAM only
  std::vector<Digest> renewed;               // whose manifests on disk say an earlier end
  std::vector<Digest> claims;
  std::vector<Digest> shown;  // restore points that are not yet durable
  uint64_t shown_bytes = 0;   // of new objects that are in RAM only
  uint64_t host_reserved_bytes = 0;
  std::vector<const StoredObject*> promised;  // to the tenant's quota
  Persisting work;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_PLAN_H_
