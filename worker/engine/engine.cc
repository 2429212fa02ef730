#include "worker/engine/engine.h"

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/device/open_device.h"
#include "worker/engine/engine_impl.h"
#include "worker/engine/runner/gemma_runner.h"
#include "worker/engine/runner/invariant_runner.h"
#include "worker/engine/scheduler.h"
#include "worker/engine/staging.h"
#include "worker/kernels/targets.h"
#include "worker/model/invariant/invariant_weights.h"
#include "worker/model/kv_choice.h"
#include "worker/model/model_config.h"
#include "worker/model/thread_pool.h"
#include "worker/prefix/object_memory.h"

namespace hearth {
namespace {

struct LoadedModel {
  std::unique_ptr<ModelRunner> model;
  std::string why_not_invariant;  // empty if the model uses class invariant
};

std::string MiBText(uint64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadGemma(const EngineOptions& options) {
  GemmaOptions gemma_options;
  gemma_options.device = options.device;
  gemma_options.dtype = options.dtype;
  gemma_options.threads = options.threads;
  gemma_options.digest_cache_dir = options.digest_cache_dir;
  absl::StatusOr<std::unique_ptr<Gemma>> gemma = Gemma::Load(options.model_dir, gemma_options);
  if (!gemma.ok()) return gemma.status();
  const Exactness exactness =
      options.exactness == ExactnessChoice::kPortable ? Exactness::kPortable : Exactness::kExact;
  std::vector<std::string> notes;
  uint64_t kv_bytes = options.memory.kv_bytes;
  if (kv_bytes == 0 && (*gemma)->device_kind() != "cpu") {
    const absl::StatusOr<uint64_t> free = (*gemma)->FreeDeviceBytes();
    if (!free.ok()) return free.status();
    kv_bytes = DefaultDeviceKvBytes(*free);
    notes.push_back(absl::StrCat("kv-bytes: ", MiBText(kv_bytes), ", chosen from ", MiBText(*free),
                                 " free on the device after loading the weights"));
  }
  return std::make_unique<GemmaRunner>(*std::move(gemma), exactness, options.PlacesOf(exactness),
                                       kv_bytes, std::move(notes));
}

// Returns an error if the KV budget cannot hold one chunk, because no request could ever run.
absl::Status CheckRoomForAChunk(const InvariantGemma& gemma, bool is_chosen_here) {
  const KvLayout layout = gemma.NewKv().layout();
  const uint64_t bytes = layout.ObjectBytes(layout.chunk_tokens, LayerGroup::kGlobal) +
                         layout.ObjectBytes(layout.chunk_tokens, LayerGroup::kLocal);
  const uint64_t budget = gemma.kv_blocks().budget_bytes();
  if (bytes <= budget) return absl::OkStatus();
  if (is_chosen_here) {
    return absl::FailedPreconditionError(
        absl::StrCat("kv-bytes: one chunk of ", layout.chunk_tokens, " tokens needs ", bytes,
                     " bytes; weights, adapters and pool leave ", budget,
                     ": lower --pool-bytes, give the process more memory, or free memory of the "
                     "device"));
  }
  return absl::InvalidArgumentError(absl::StrCat("kv-bytes: must be at least ", bytes,
                                                 " (one chunk of ", layout.chunk_tokens,
                                                 " tokens); got ", budget, ": raise --kv-bytes"));
}

WeightForm FormOf(WeightsChoice weights) {
  switch (weights) {
    case WeightsChoice::kFloat32:
      return WeightForm::kFloat32;
    case WeightsChoice::kQ8_0:
      return WeightForm::kQ8_0;
    case WeightsChoice::kQ4_0:
      return WeightForm::kQ4_0;
    default:
      return WeightForm::kStored;
  }
}

// Returns the arithmetic of the matrices that support it.
Arithmetic ArithmeticOf(const EngineOptions& options) {
  if (options.arithmetic == ArithmeticChoice::kBFloat16) return Arithmetic::kBFloat16;
  return options.arithmetic == ArithmeticChoice::kFloat32 ? Arithmetic::kFloat32
                                                          : Arithmetic::kInt8;
}

// Returns --kv-bytes, or chooses a value and adds a note about the choice. 0: the device decides.
uint64_t ChooseKvBytes(const EngineOptions& options, std::vector<std::string>* notes) {
  if (options.memory.kv_bytes > 0) return options.memory.kv_bytes;
  if (options.device != "cpu" && options.device != kEmulatedDevice) return 0;
  // If the size of the weights cannot be read, continue with 0: loading the model returns the
  // error.
  const uint64_t weights =
      InvariantWeightBytes(options.model_dir, FormOf(options.weights)).value_or(0);
  const uint64_t memory = MemoryBytes(), pool = options.memory.pool_bytes;
  const uint64_t chosen = DefaultKvBytes(memory, weights, pool);
  notes->push_back(absl::StrCat("kv-bytes: ", MiBText(chosen), ", chosen: the machine has ",
                                MiBText(memory), " of memory, the weights take ", MiBText(weights),
                                ", --pool-bytes is ", MiBText(pool)));
  return chosen;
}

// Returns --kv-offload-bytes, or half of the memory that the pool leaves.
uint64_t ChooseOffloadBytes(const EngineOptions& options, std::vector<std::string>* notes) {
  if (options.memory.kv_offload_bytes > 0) return options.memory.kv_offload_bytes;
  const uint64_t chosen = DefaultKvBytes(MemoryBytes(), 0, options.memory.pool_bytes);
  notes->push_back(absl::StrCat("kv-offload-bytes: ", MiBText(chosen), ", chosen"));
  return chosen;
}

// Pins the memory of objects, so that copies between them and the device run at the link's speed.
void PinHostMemory(const Device& device, std::vector<std::string>* notes) {
  HostPinning pinning = device.pinning();
  if (pinning.pin == nullptr) return;
  if (PinObjectMemory(std::move(pinning.pin), std::move(pinning.unpin))) return;
  notes->push_back("device: host memory cannot be pinned: saving and restoring KV is slower");
}

// Returns the maximum rows of the steps that the scheduler will plan.
StepLimits LimitsOf(const EngineOptions& options, const InvariantGemma& gemma) {
  StepLimits limits;
  limits.alone = gemma.alone_rows();
  limits.decodes = options.PlacesOf(Exactness::kInvariant);
  limits.together =
      Scheduler::MostRows(options.step_tokens > 0 ? options.step_tokens : options.chunk_tokens,
                          limits.alone, limits.decodes);
  return limits;
}

// Returns the KV strategy and quantization: from the flags, else from the model's generation
// config.
absl::StatusOr<KvChoice> ChooseKvOf(const EngineOptions& options, const KvLayout& layout) {
  const bool on_device = options.device != "cpu";
  KvChoice of_model;
  if (options.kv.cache.empty()) {
    const absl::StatusOr<ModelConfig> config = LoadModelConfig(options.model_dir);
    if (!config.ok()) return config.status();
    absl::StatusOr<KvChoice> says = ModelKvChoice(config->generation, layout, on_device);
    if (!says.ok()) return says.status();
    of_model = *says;
  }
  return ChooseKv(options.kv, of_model, layout, on_device);
}

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadInvariant(const EngineOptions& options) {
  const bool on_device = options.device != "cpu";
  std::vector<std::string> notes;
  InvariantGemmaOptions gemma_options;
  gemma_options.threads = options.threads > 0 ? options.threads : ThreadPool::PhysicalCores();
  gemma_options.chunk = static_cast<int>(options.chunk_tokens);
  gemma_options.kv_bytes = ChooseKvBytes(options, &notes);
  gemma_options.digest_cache_dir = options.digest_cache_dir;
  gemma_options.weights = FormOf(options.weights);
  if (on_device) {
    auto device = OpenDevice(options.device);
    if (!device.ok()) return device.status();
    PinHostMemory(**device, &notes);
    gemma_options.device = *std::move(device);
    gemma_options.kv_offload_bytes = ChooseOffloadBytes(options, &notes);
  }
  gemma_options.arithmetic = ArithmeticOf(options);
  if (options.kv_dtype == KvDtypeChoice::kAuto) {
    gemma_options.kv_dtype = std::nullopt;
  } else if (options.kv_dtype == KvDtypeChoice::kBFloat16) {
    gemma_options.kv_dtype = KvDtype::kBFloat16;
  }
  absl::StatusOr<std::unique_ptr<InvariantGemma>> gemma =
      InvariantGemma::Load(options.model_dir, gemma_options);
  if (!gemma.ok()) return gemma.status();
  if (options.arithmetic == ArithmeticChoice::kInt8 &&
      (*gemma)->arithmetic() != Arithmetic::kInt8) {
    return absl::InvalidArgumentError(
        absl::StrCat("arithmetic: int8 needs quantized weights; ", options.model_dir,
                     " has none: use --arithmetic auto, or add --weights q8_0"));
  }
  const absl::StatusOr<KvChoice> kv = ChooseKvOf(options, (*gemma)->NewKv().layout());
  if (!kv.ok()) return kv.status();
  if (absl::Status room = CheckRoomForAChunk(**gemma, options.memory.kv_bytes == 0); !room.ok())
    return room;
  if (absl::Status held = (*gemma)->SelfTest(options.digest_cache_dir, LimitsOf(options, **gemma));
      !held.ok()) {
    return SelfTestFailure(held);
  }
  const InvariantGemma& loaded = **gemma;
  auto runner = std::make_unique<InvariantRunner>(*std::move(gemma), *kv, std::move(notes));
  for (const auto& [name, dir] : options.adapters) {
    const absl::Status added = runner->LoadAdapter(name, dir);
    if (added.ok()) continue;
    return absl::Status(added.code(), absl::StrCat("adapter ", name, ": ", added.message()));
  }
  if (gemma_options.kv_bytes > 0) return runner;
  if (absl::Status room = CheckRoomForAChunk(loaded, true); !room.ok()) return room;
  runner->AddNote(absl::StrCat("kv-bytes: ", MiBText(loaded.kv_blocks().budget_bytes()),
                               ", three quarters of the device's free memory"));
  return runner;
}

absl::StatusOr<LoadedModel> LoadExact(const EngineOptions& options, std::string why) {
  const auto refuse = [&why](const std::string& what) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " needs exactness invariant, which this worker does not use: ", why));
  };
  if (!options.kv.cache.empty() && options.kv.cache != KvStrategyName(KvStrategy::kDynamic))
    return refuse(absl::StrCat("kv-cache: ", options.kv.cache));
  if (const auto given = options.ChoicesOfInvariant(); !given.empty())
    // the user asked for class invariant: return an error
    return refuse(absl::StrCat(given[0].first, ": ", given[0].second));
  if (!options.adapters.empty())
    return refuse(absl::StrCat("adapter ", options.adapters.begin()->first));
  absl::StatusOr<std::unique_ptr<ModelRunner>> model = LoadGemma(options);
  if (!model.ok()) return model.status();
  if (const std::string flags = options.FlagsOfInvariant(); !flags.empty()) {
    absl::StrAppend(&why, " (so ", flags, flags.find(' ') == flags.npos ? " has" : " have",
                    " no effect)");
  }
  return LoadedModel{*std::move(model), std::move(why)};
}

// Returns the model in the exactness class of the options. `auto` chooses class invariant if the
// options support it, its self-test passes, and the CPU has AVX2 and FMA.
absl::StatusOr<LoadedModel> ChooseModel(const EngineOptions& options) {
  const ExactnessChoice choice = options.exactness;
  const bool is_auto = choice == ExactnessChoice::kAuto;
  if (!is_auto && choice != ExactnessChoice::kInvariant) {
    const bool portable = choice == ExactnessChoice::kPortable;
    return LoadExact(options,
                     absl::StrCat("--exactness ", portable ? "portable" : "exact", " was given"));
  }
  if (is_auto) {
    const absl::Status may = CheckAutoInvariant(options.device, options.dtype);
    if (!may.ok()) return LoadExact(options, std::string(may.message()));
    if (options.device == "cpu" && ChosenTarget() == KernelTarget::kPlain) {
      return LoadExact(options, "exactness: invariant is slow on a CPU without AVX2 and FMA");
    }
  }
  absl::StatusOr<std::unique_ptr<ModelRunner>> model = LoadInvariant(options);
  if (model.ok()) return LoadedModel{*std::move(model), ""};
  const bool not_here =
      absl::IsFailedPrecondition(model.status()) || absl::IsUnimplemented(model.status());
  if (!is_auto || !not_here || options.device != "cpu") return model.status();
  return LoadExact(options, std::string(model.status().message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  try {
    absl::StatusOr<LoadedModel> loaded = ChooseModel(options);
    if (!loaded.ok()) return loaded.status();
    auto engine = std::make_unique<EngineImpl>(options, std::move(loaded->model),
                                               std::move(loaded->why_not_invariant));
    if (absl::Status status = engine->Start(); !status.ok()) return status;
    return engine;
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(options.model_dir, ": ", error.what()));
  }
}

}  // namespace hearth
