// KvLayout: the geometry of stored keys and values (KV): layers, division of a prompt into parts,
// sizes of the parts.
//
// Plain values, safe to copy; no I/O. All sizes and lists on which workers and the store must agree
// come from this header and restore_rule.h.
#ifndef HEARTH_PROTO_KV_LAYOUT_H_
#define HEARTH_PROTO_KV_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "proto/kv_quantization.h"

namespace hearth {

// Groups of layers: full attention, or sliding-window attention. The numbers are stored and sent,
// so never change them.
enum class LayerGroup : uint8_t { kGlobal = 0, kLocal = 1 };
enum class KvDtype : uint8_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };
// What determines the bits of KV. exact: the tokens and the prefill steps, so keys include the
// cuts. portable: only the tokens, but the results differ by rounding. invariant: only the tokens.
enum class Exactness : uint8_t { kExact = 0, kPortable = 1, kInvariant = 2 };
// Returns whether keys include the cuts: the positions where prefill steps ended.
inline bool CutsAreKeyed(Exactness exactness) { return exactness == Exactness::kExact; }
// Returns whether KV with equal keys has equal bits.
inline bool BitsFollowKeys(Exactness exactness) { return exactness != Exactness::kPortable; }

// The tier from which a prefix was restored. A larger value is a slower tier.
enum class Tier : uint8_t { kNone = 0, kWorker = 1, kGpu = 2, kHost = 3, kDisk = 4, kShared = 5 };

// The durability that a publish must reach before it is acknowledged. kShared: on disk, and also in
// the engine that several stores share.
enum class Durability : uint8_t { kDefault = 0, kMemory = 1, kDisk = 2, kSync = 3, kShared = 4 };

// Hints of a publisher about the eviction of its restore points; see PublishBegin.keep_s and
// priority.
struct KeepHint {
  uint32_t keep_s = 0;
  int32_t priority = 0;
  bool is_given() const { return keep_s > 0 || priority != 0; }
};
inline constexpr uint32_t kMaxKeepSeconds = 3600;
inline constexpr int32_t kMaxPriority = 8;

// Returns the tier's name: "none", "worker", "gpu", "host", "disk" or "shared".
const char* TierName(Tier tier);
// Returns the name of the durability: "default", "memory", "disk", "sync" or "shared".
const char* DurabilityName(Durability durability);
// Returns the name of the class: "exact", "portable" or "invariant".
const char* ExactnessName(Exactness exactness);
// Returns the name of the element type: "float32", "bfloat16" or "float16".
const char* KvDtypeName(KvDtype dtype);
size_t KvDtypeBytes(KvDtype dtype);

inline constexpr uint32_t kMinChunkTokens = 16;
inline constexpr uint32_t kMaxChunkTokens = 1024;
inline constexpr uint32_t kDefaultChunkTokens = 128;
// Longest prompt, in tokens: 8 times the longest context of Gemma 3.
inline constexpr uint32_t kMaxPromptTokens = 1u << 20;
// Limits of a model's shape. Gemma 3 27B has 62 layers with 16 KV heads of dimension 128. The
// limits allow larger models without overflow: a slice is at most 2 x 1,024 heads x 1,024 tokens x
// 4,096 x 4 bytes = 32 GiB.
inline constexpr uint32_t kMaxLayers = 1024;
inline constexpr uint32_t kMaxKvHeads = 1024;
inline constexpr uint32_t kMaxHeadDim = 4096;
// Limit for the bytes of a page per token: 2 x 128 heads x 1,024 x 4 bytes.
inline constexpr uint32_t kMaxPageTokenBytes = 1u << 20;

struct KvLayout {
  // a power of two from kMinChunkTokens to kMaxChunkTokens
  uint32_t chunk_tokens = kDefaultChunkTokens;
  // width of the sliding window in tokens, including the current token: a restore needs window - 1
  // tokens
  uint32_t window = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  KvDtype dtype = KvDtype::kFloat32;
  Exactness exactness = Exactness::kExact;
  std::vector<LayerGroup> layers;  // group of each model layer
  KvQuantization quantization;  // quantization of whole chunks; shorter objects are not quantized
  // If above 0, a slice is an opaque page of an inference engine: one layer of one block of
  // chunk_tokens tokens, with this many bytes. Then every object is a whole chunk, and kv_heads,
  // head_dim and dtype are unused.
  uint32_t page_bytes = 0;

  // Checks all members. kInvalidArgument names the first member that is out of range.
  absl::Status Validate() const;
  // Returns the model layer numbers of a group, ascending.
  std::vector<uint32_t> LayersOf(LayerGroup group) const;
  size_t LayerCount(LayerGroup group) const {
    return static_cast<size_t>(std::count(layers.begin(), layers.end(), group));
  }
  // Returns the bytes of a slice of `tokens` tokens: keys and values of all KV heads.
  size_t SliceBytes(uint32_t tokens) const {
    if (page_bytes > 0) return page_bytes;
    return quantization.is_on() && tokens == chunk_tokens ? QuantizedSliceBytes()
                                                          : PlainSliceBytes(tokens);
  }
  // Returns the bytes of a slice that is not quantized.
  size_t PlainSliceBytes(uint32_t tokens) const {
    return size_t{2} * kv_heads * tokens * head_dim * KvDtypeBytes(dtype);
  }
  // Returns the bytes of a quantized slice: the keys of all KV heads, then the values of all KV
  // heads, padded to a multiple of 64.
  size_t QuantizedSliceBytes() const {
    const size_t planes = size_t{2} * kv_heads * quantization.PlaneBytes(chunk_tokens, head_dim);
    return (planes + 63) / 64 * 64;
  }
  size_t ObjectBytes(uint32_t tokens, LayerGroup group) const {
    return LayerCount(group) * SliceBytes(tokens);
  }
  // Returns whether a restore point may end at `boundary`. Pages cannot be divided, so it may only
  // end after a whole chunk.
  bool MayEndAt(uint32_t boundary) const { return page_bytes == 0 || boundary % chunk_tokens == 0; }

 private:
  absl::Status ValidateRows() const;
  absl::Status ValidatePages() const;
};

// Names an object of a prompt: the KV of tokens [begin, begin + tokens) in one layer group.
struct ObjectId {
  uint32_t begin = 0;
  uint32_t tokens = 0;
  LayerGroup group = LayerGroup::kGlobal;

  friend bool operator==(const ObjectId& a, const ObjectId& b) {
    return std::tie(a.begin, a.tokens, a.group) == std::tie(b.begin, b.tokens, b.group);
  }
  friend bool operator<(const ObjectId& a, const ObjectId& b) {
    return std::tie(a.begin, a.tokens, a.group) < std::tie(b.begin, b.tokens, b.group);
  }
};
// Returns the object's name for errors, such as "local object [1536, 1664)".
std::string ObjectName(const ObjectId& id);

// Returns the XXH3-64 digest of the bytes of a slice. The digest is sent and stored with the slice.
uint64_t SliceDigest(const void* data, size_t bytes);

}  // namespace hearth

#endif  // HEARTH_PROTO_KV_LAYOUT_H_
