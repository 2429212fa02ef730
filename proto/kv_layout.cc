#include "proto/kv_layout.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "proto/xxh3.h"

namespace hearth {
namespace {

absl::Status CheckRange(const char* field, uint64_t value, uint64_t lowest, uint64_t highest) {
  if (value >= lowest && value <= highest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", allowed are ", lowest, " to ", highest));
}

// Returns the name of an enum value. `names` is indexed by the value.
template <typename Enum>
const char* NameOf(Enum value, std::initializer_list<const char*> names) {
  const size_t place = static_cast<size_t>(value);
  return place < names.size() ? names.begin()[place] : "unknown";
}

}  // namespace

const char* TierName(Tier tier) {
  return NameOf(tier, {"none", "worker", "gpu", "host", "disk", "shared"});
}

const char* DurabilityName(Durability durability) {
  return NameOf(durability, {"default", "memory", "disk", "sync", "shared"});
}

const char* ExactnessName(Exactness exactness) {
  return NameOf(exactness, {"exact", "portable", "invariant"});
}

const char* KvDtypeName(KvDtype dtype) { return NameOf(dtype, {"float32", "bfloat16", "float16"}); }

size_t KvDtypeBytes(KvDtype dtype) { return dtype == KvDtype::kFloat32 ? 4 : 2; }

absl::Status KvLayout::ValidateRows() const {
  absl::Status range = CheckRange("kv_heads", kv_heads, 1, kMaxKvHeads);
  if (!range.ok()) return range;
  range = CheckRange("head_dim", head_dim, 1, kMaxHeadDim);
  if (!range.ok()) return range;
  range = CheckRange("kv_dtype", static_cast<uint64_t>(dtype), 0,
                     static_cast<uint64_t>(KvDtype::kFloat16));
  if (!range.ok() || !quantization.is_on()) return range;
  if (dtype == KvDtype::kFloat16) {
    return absl::InvalidArgumentError("kv_dtype: only rows of float32 and bfloat16 are quantized");
  }
  return quantization.Check(chunk_tokens, head_dim);
}

absl::Status KvLayout::ValidatePages() const {
  if (quantization.is_on()) {
    return absl::InvalidArgumentError("codec: pages of object_layout 2 are not quantized here");
  }
  return CheckRange("page_bytes", page_bytes, 1, uint64_t{kMaxPageTokenBytes} * chunk_tokens);
}

absl::Status KvLayout::Validate() const {
  absl::Status range = CheckRange("chunk_tokens", chunk_tokens, kMinChunkTokens, kMaxChunkTokens);
  if (!range.ok()) return range;
  if ((chunk_tokens & (chunk_tokens - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_tokens is ", chunk_tokens, ", not a power of two"));
  }
  range = page_bytes > 0 ? ValidatePages() : ValidateRows();
  if (!range.ok()) return range;
  range = CheckRange("layer count", layers.size(), 1, kMaxLayers);
  if (!range.ok()) return range;
  range = CheckRange("exactness", static_cast<uint64_t>(exactness), 0,
                     static_cast<uint64_t>(Exactness::kInvariant));
  if (!range.ok()) return range;
  bool has_local = false;
  for (LayerGroup group : layers) {
    range = CheckRange("layer group", static_cast<uint64_t>(group), 0, 1);
    if (!range.ok()) return range;
    has_local |= group == LayerGroup::kLocal;
  }
  // If no layer has a sliding window, `window` is unused and may have any value.
  if (!has_local) return absl::OkStatus();
  return CheckRange("window", window, 1, kMaxPromptTokens);
}

std::vector<uint32_t> KvLayout::LayersOf(LayerGroup group) const {
  std::vector<uint32_t> indices;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] == group) indices.push_back(static_cast<uint32_t>(i));
  }
  return indices;
}

std::string ObjectName(const ObjectId& id) {
  return absl::StrCat(id.group == LayerGroup::kGlobal ? "global" : "local", " object [", id.begin,
                      ", ", uint64_t{id.begin} + id.tokens, ")");
}

uint64_t SliceDigest(const void* data, size_t bytes) {
  const ScopedVzeroupper clean;
  return XXH3_64bits(data, bytes);
}

}  // namespace hearth
