// KvChoice: how a sequence's keys and values are stored in memory. The request decides; if it
// specifies nothing, the worker's flags decide; without flags, the model's generation_config.json
// decides. The strategies have the names that the library transformers uses.
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

// On a device, the names `offloaded` and `offloaded_static` mean kOffloaded. On a CPU they mean
// kDynamic and kStatic, because a CPU has no other memory to which KV could be offloaded.
enum class KvStrategy {
  kDynamic,    // allocates KV blocks as the sequence grows
  kStatic,     // allocates all KV blocks of the sequence in its first step
  kQuantized,  // quantizes KV blocks once a chunk is complete
  kOffloaded,  // keeps complete chunks of a device's global layers in host memory
};

// Returns the name of a strategy, such as "dynamic".
const char* KvStrategyName(KvStrategy strategy);
// Returns the names of all strategies, separated by commas.
std::string KvStrategyNames();

// A request's KV options; an empty string means that the request does not specify the option.
struct RequestedKv {
  std::string cache;         // name of a strategy
  std::string quantization;  // options of the strategy `quantized`
};

struct KvChoice {
  KvStrategy strategy = KvStrategy::kDynamic;
  KvQuantization quantization;  // is_on() exactly if the strategy is kQuantized
};

// Returns whether sequences with the choices `a` and `b` compute the same bits.
inline bool SameBits(const KvChoice& a, const KvChoice& b) {
  return a.quantization == b.quantization;
}

// Returns the options of `requested`; options that it does not specify come from `fallback`.
// `on_device`: whether the model runs on a device.
// kInvalidArgument: the message names the field; for an option of another strategy, also both
// strategies.
absl::StatusOr<KvChoice> ChooseKv(const RequestedKv& requested, const KvChoice& fallback,
                                  const KvLayout& layout, bool on_device = false);

// Returns the default of --kv-bytes for a device that has `free_bytes` free after loading the
// weights. The remaining memory is for the activations of a step.
inline uint64_t DefaultDeviceKvBytes(uint64_t free_bytes) { return free_bytes / 4 * 3; }

// Returns the choice in a model's generation_config.json. The names `hybrid` and `sliding_window`
// only describe the layers and mean kDynamic: in sliding-window layers, every strategy keeps only
// the window.
absl::StatusOr<KvChoice> ModelKvChoice(const GenerationDefaults& model, const KvLayout& layout,
                                       bool on_device = false);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_KV_CHOICE_H_
