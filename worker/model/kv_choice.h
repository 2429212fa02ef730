// KvChoice: how the keys and values of a sequence are kept. The request decides; if it does not
// say, the worker's flags do; if they do not, the model's generation_config.json does. The names
// are those of transformers.
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

// `offloaded` and `offloaded_static` mean kDynamic and kStatic: a CPU has no other memory to
// offload to.
enum class KvStrategy {
  kDynamic,    // takes blocks as the sequence grows
  kStatic,     // takes all blocks that it may need in its first step
  kQuantized,  // keeps whole chunks in fewer bits
};

// Returns the name, such as "dynamic".
const char* KvStrategyName(KvStrategy strategy);
// Returns all names, separated by commas.
std::string KvStrategyNames();

// A request for a way to keep KV; empty strings: not specified.
struct RequestedKv {
  std::string cache;         // name of a strategy
  std::string quantization;  // options of the strategy `quantized`
};

struct KvChoice {
  KvStrategy strategy = KvStrategy::kDynamic;
  KvQuantization quantization;  // is_on() if and only if the strategy is kQuantized
};

// Returns whether sequences with these choices compute the same bits.
inline bool SameBits(const KvChoice& a, const KvChoice& b) {
  return a.quantization == b.quantization;
}

// Returns what `requested` specifies, and `fallback` for the rest, for sequences of this layout.
// kInvalidArgument names the field; for an option of another strategy, both strategies.
absl::StatusOr<KvChoice> ChooseKv(const RequestedKv& requested, const KvChoice& fallback,
                                  const KvLayout& layout);

// Checks that a device supports the strategy `name`. kInvalidArgument names `field` and the
// supported strategies.
absl::Status CheckKvOnDevice(const std::string& device, const std::string& field,
                             const std::string& name);

// Returns the default of --kv-bytes for a device with `free_bytes` free after loading the weights.
// The rest is for the activations of a step.
inline uint64_t DefaultDeviceKvBytes(uint64_t free_bytes) { return free_bytes / 4 * 3; }

// Returns the choice in a model's generation_config.json, for sequences of this layout. The names
// `hybrid` and `sliding_window` only describe the layers and mean kDynamic: every strategy keeps
// just the window of a sliding layer.
absl::StatusOr<KvChoice> ModelKvChoice(const GenerationDefaults& model, const KvLayout& layout);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_KV_CHOICE_H_
