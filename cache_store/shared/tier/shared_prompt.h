// SharedPrompt: a prompt's objects as the shared engine names them.
//
// Plain value, made without any lock; thread safe once made. Ownership: borrows the caller's token
// ids and cuts.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_PROMPT_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_PROMPT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/types/span.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/shared/shared_object.h"
#include "cache_store/shared/shared_space.h"

namespace hearth {

struct SharedPrompt {
  std::shared_ptr<const SharedSpace> space;
  KvLayout layout;
  ChainPtr chain;
  absl::Span<const uint32_t> token_ids;

  // Null: not of the chain.
  const KeyedSegment* SegmentOf(const ObjectId& id) const {
    return chain->EndingAt(id.begin + id.tokens, layout.chunk_tokens);
  }
  // REQUIRES for both: SegmentOf(id) is not null.
  SharedShape ShapeOf(const ObjectId& id) const;
  std::string NameOf(const ObjectId& id, uint32_t part) const {
    return space->PartName(SegmentOf(id)->key, id.group, part);
  }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_PROMPT_H_
