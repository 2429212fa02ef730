// Store::ReadManifest: a manifest on its way into the catalog. A plain value, private to
// store_adopt.cc and store_quarantine.cc.
#ifndef HEARTH_CACHE_STORE_STORE_READ_MANIFEST_H_
#define HEARTH_CACHE_STORE_STORE_READ_MANIFEST_H_

#include <memory>

#include "cache_store/store/store_impl.h"

namespace hearth {

struct Store::ReadManifest {
  // The id of the restore point that it is of; zeros where it cannot be told.
  Digest point() const {
    if (model == nullptr) return {};
    const KeyedSegment* last =
        chain.EndingAt(record.manifest.token_count, model->layout.chunk_tokens);
    return last == nullptr ? Digest{} : last->key;
  }

  ManifestRecord record;
  std::shared_ptr<const KnownFingerprint> model;  // null: it is of no use
  PromptChain chain;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_READ_MANIFEST_H_
