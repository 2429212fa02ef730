// Prompts and KV bytes for tests of the store. The bytes are hashes instead of a model's results.
//
// The bytes of a slice depend only on fingerprint, tokens, cuts and layer, so a test can check any
// fetched byte without keeping the published bytes. Pure functions.
#ifndef HEARTH_TESTS_SUPPORT_STORE_KIT_H_
#define HEARTH_TESTS_SUPPORT_STORE_KIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cache_store/store/tiered_store.h"

namespace hearth {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

struct KitModel {
  uint32_t chunk_tokens = 16;
  uint32_t window = 24;
  uint32_t head_dim = 2;
  std::string layer_types = "llg";
  bool exact = true;
  std::string weights = "w0";
  uint32_t hidden_size = 0;  // 0: the fingerprint does not have this field
  // if above 0: slices are opaque pages of an engine, without heads and dtype
  uint32_t page_bytes = 0;

  Fingerprint Make() const;
};

struct KitPrompt {
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> cuts;
  std::string tenant = "default";
};

// Returns `count` token ids that depend only on `seed`. A shorter list is a prefix of a longer
// list.
std::vector<uint32_t> KitTokens(uint64_t seed, uint32_t count);

PrefixQuery KitQuery(const Fingerprint& model, const KitPrompt& prompt);
SliceView KitSlice(const Fingerprint& model, const KitPrompt& prompt, const ObjectId& id,
                   uint32_t layer);
// Returns the announcement with which a worker publishes these boundaries of the prompt.
PublishSpec KitSpec(const Fingerprint& model, const KitPrompt& prompt,
                    const std::vector<uint32_t>& boundaries,
                    Durability durability = Durability::kDefault);

// Publishes restore points: announces them, sends exactly the objects that the store needs, and
// commits.
absl::StatusOr<PublishResult> KitPublish(TieredStore* store, const Fingerprint& model,
                                         const KitPrompt& prompt,
                                         const std::vector<uint32_t>& boundaries,
                                         Durability durability = Durability::kDefault);
// Sends every needed slice, without commit.
absl::Status KitPutAll(PublishSession* session, const PublishSpec& spec, const Fingerprint& model,
                       const KitPrompt& prompt);
// Reads the whole plan. kInternal: a byte differs from the model's.
absl::Status KitReadAll(FetchSession* session, const Fingerprint& model, const KitPrompt& prompt);
// Fetches and reads everything. Returns the usable tokens; 0: a miss.
absl::StatusOr<uint32_t> KitFetch(TieredStore* store, const Fingerprint& model,
                                  const KitPrompt& prompt, Tier* slowest = nullptr);

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_STORE_KIT_H_
