// KvChoice: how the keys and values of a sequence are kept. A request says it, else the worker's
// flags, else the model's generation_config.json, by transformers' names.
//
// Thread safety: values and pure functions.
#ifndef HEARTH_WORKER_MODEL_KV_CHOICE_H_
#define HEARTH_WORKER_MODEL_KV_CHOICE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/kv_layout.h"
#include "proto/kv_quantization.h"
#include "worker/model/model_config.h"

namespace hearth {

// `offloaded` and `offloaded_static` are names of kDynamic and kStatic: on a CPU there is no other
// memory to move keys and values to.
enum class KvStrategy {
  kDynamic,    // blocks are taken as the sequence grows
  kStatic,     // all that it may need, with its first step
  kQuantized,  // whole chunks in fewer bits
};

// "dynamic".
const char* KvStrategyName(KvStrategy strategy);
// "dynamic": those that there are, with commas.
std::string KvStrategyNames();

// What somebody says of it; empty: nothing.
struct RequestedKv {
  std::string cache;         // the name of a strategy
  std::string quantization;  // options of the strategy `quantized`
};

struct KvChoice {
  KvStrategy strategy = KvStrategy::kDynamic;
  KvQuantization quantization;  // on exactly where it is the strategy quantized
};

// Whether what one computes is the other's to the bit.
inline bool SameBits(const KvChoice& a, const KvChoice& b) {
  return a.quantization == b.quantization;
}

// What `requested` says, and `fallback` where it says nothing, for sequences of this layout.
// kInvalidArgument names the field, and of an option of another strategy both.
absl::StatusOr<KvChoice> ChooseKv(const RequestedKv& requested, const KvChoice& fallback,
                                  const KvLayout& layout);

// Whether a device keeps keys and values as the strategy of this name says; kInvalidArgument names
// `field` and the strategies that it has.
absl::Status CheckKvOnDevice(const std::string& device, const std::string& field,
                             const std::string& name);

// The --kv-bytes of a worker that is not told, of a device with `free_bytes` beside the weights: a
// step's activations have the rest.
inline uint64_t DefaultDeviceKvBytes(uint64_t free_bytes) { return free_bytes / 4 * 3; }

// What a model's generation_config.json says, for sequences of this layout: also a name that says
// only what layers look like, `hybrid` or `sliding_window`, as of sliding layers every strategy
// keeps their window.
absl::StatusOr<KvChoice> ModelKvChoice(const GenerationDefaults& model, const KvLayout& layout);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_KV_CHOICE_H_
