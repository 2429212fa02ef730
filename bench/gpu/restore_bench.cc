// Measures restores and offloaded KV (worker/model/invariant) of a seeded model in bfloat16.
//
//   device_restore_bench cuda 4B          prefixes of 2,048 and 32,768 tokens
//   device_restore_bench emulated tiny    a tiny model and short prefixes; for tests
//
// Each result is a line of JSON: {"row": ..., "unit": ..., "values": [...]}, one value for each of
// kRuns runs. Times are those of the host, from and to an idle device. One more run before them is
// not measured: it allocates memory that the others reuse.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/gpu/seeded_cases.h"
#include "proto/restore_rule.h"
#include "tests/support/seeded_device_model.h"
#include "worker/device/device_step.h"
#include "worker/device/open_device.h"
#include "worker/device/product_tuning.h"
#include "worker/device/warpgroup_check.h"
#include "worker/model/invariant/invariant_kv.h"
#include "worker/model/invariant/kv_staging.h"
#if defined(HEARTH_WITH_CUDA_DEVICE)
#include "bench/gpu/seeded_fill.h"
#endif

namespace hearth {
namespace {

constexpr int kRuns = 9;
constexpr int kSuffix = 64;  // tokens of the first step after a restore; more than a graph's rows

using Clock = std::chrono::steady_clock;

double MsSince(Clock::time_point begin, Clock::time_point end = Clock::now()) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

double MsOf(const std::function<void()>& work) {
  const Clock::time_point begin = Clock::now();
  work();
  return MsSince(begin);
}

void Require(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

struct Sizes {
  SeededGeometry geometry;
  int split;        // tokens of a KV block
  int prefixes[2];  // tokens; multiples of `split`
  int context;      // tokens of the sequence that decodes beside a restore
};

Sizes SizesOf(const std::string& model) {
  if (model == "4B") return {Gemma4B(), kSeededSplit, {2048, 32768}, 512};
  Require(model == "tiny", "model: must be 4B or tiny; got " + model);
  return {{"tiny", "lgl", 100, 4, 2, 64, 128, 256, 512}, 16, {64, 128}, 48};
}

DeviceMatrix NewMatrix(Device* device, const std::vector<SeededRows>& rows, int inputs,
                       bool is_pair) {
#if defined(HEARTH_WITH_CUDA_DEVICE)
  if (device->kind() != std::string(kEmulatedDevice)) {
    return FillSeededMatrix(static_cast<CudaDevice*>(device), rows, inputs, is_pair);
  }
#endif
  return MakeSeededMatrix(device, rows, inputs, is_pair);
}

std::shared_ptr<const KvLayout> LayoutOf(const DeviceShape& shape) {
  auto layout = std::make_shared<KvLayout>();
  layout->chunk_tokens = static_cast<uint32_t>(shape.split);
  layout->window = static_cast<uint32_t>(shape.window);
  layout->kv_heads = static_cast<uint32_t>(shape.kv_heads);
  layout->head_dim = static_cast<uint32_t>(shape.head_dim);
  layout->dtype = KvDtype::kBFloat16;
  layout->exactness = Exactness::kInvariant;
  for (const bool is_global : shape.is_global) {
    layout->layers.push_back(is_global ? LayerGroup::kGlobal : LayerGroup::kLocal);
  }
  return layout;
}

// Where a restore finds an object: in pinned memory, in device memory that its owner lends (the gpu
// tier), or in a block of the worker's pool.
enum class From { kHost, kGpuTier, kPool };

struct Prefix {
  struct Object {
    ObjectId id;
    KvBlock on_host, on_device;
  };
  int length = 0;
  std::vector<Object> objects;
  std::vector<float> logits;  // of the last token of the suffix, without a restore
};

class Bench {
 public:
  Bench(std::shared_ptr<Device> device, const Sizes& sizes)
      : sizes_(sizes),
        device_(std::move(device)),
        text_(SeededTokens(0, sizes.prefixes[1] + 2 * kSuffix, sizes.geometry.vocabulary)),
        model_(MakeSeededModel(device_.get(), sizes.geometry, sizes.split,
                               static_cast<int>(text_.size()),
                               [this](const auto& rows, int inputs, bool is_pair) {
                                 return NewMatrix(device_.get(), rows, inputs, is_pair);
                               })),
        blocks_(UINT64_MAX, DeviceMemory(device_)),
        host_(UINT64_MAX, PinnedMemory(device_)),
        staging_(device_.get(), model_.shape, /*widens=*/false),
        logits_(Take(&host_, LogitsBytes())) {
    model_.multiplies_bf16 = model_.shape.kv_is_bf16 = true;
    layout_ = LayoutOf(model_.shape);
    step_ = std::make_unique<DeviceStep>(device_.get(), &model_, DeviceStepLimits());
    if (device_->has_warpgroups()) {
      step_->UseWarpgroups(DifferingWarpgroupOutputs(device_.get()) == 0);
    }
    ProductTuner(device_.get(), &model_, step_.get()).Tune(5e5);
  }

  void Run() {
    Prefix prefix;
    for (const int length : sizes_.prefixes) {
      prefix = NewPrefix(length);
      MeasureRestore(prefix);
    }
    MeasureDecodeBeside(prefix);
    MeasureFirstLaunch(prefix, From::kGpuTier, "the gpu tier");
    MeasureFirstLaunch(prefix, From::kPool, "the worker's pool");
    MeasureOffloaded(prefix);
    Result("other logits after a restore", absl::StrCat("of ", compared_), {other_});
  }

 private:
  void Result(const std::string& row, const std::string& unit, const std::vector<double>& values) {
    std::printf("{\"row\": \"%s, bf16: %s\", \"unit\": \"%s\", \"values\": [%s]}\n",
                sizes_.geometry.name.c_str(), row.c_str(), unit.c_str(),
                absl::StrJoin(values, ", ").c_str());
    std::fflush(stdout);
  }
  // Calls `run` once, then kRuns times. Returns the values of these runs.
  static std::vector<double> Measure(const std::function<double()>& run) {
    run();
    std::vector<double> values;
    for (int i = 0; i < kRuns; ++i) values.push_back(run());
    return values;
  }
  static KvBlock Take(KvBlocks* from, size_t bytes) {
    absl::StatusOr<std::vector<KvBlock>> taken = from->Take({bytes});
    Require(taken.ok(), "no memory for a block");
    return taken->front();
  }
  size_t LogitsBytes() const {
    return static_cast<size_t>(model_.shape.vocabulary) * sizeof(float);
  }
  InvariantKv NewKv() { return InvariantKv(layout_, &blocks_, 1); }

  // Waits for the device, and ends the program if it failed.
  void Finish() {
    device_->Wait();
    Require(device_->error().empty(), device_->error());
  }

  // Appends the next tokens of the text, up to `end`, to the sequence, as DeviceForward::Start and
  // Finish do.
  void Step(int end, InvariantKv* kv) {
    const int begin = kv->length(), tokens = end - begin;
    Require(kv->MakeRoom(tokens).ok(), "no memory for keys and values");
    const std::vector<std::byte*> local = kv->BlocksOf(LayerGroup::kLocal);
    std::vector<std::byte*> global = kv->BlocksOf(LayerGroup::kGlobal);
    DeviceStep::StageLayer stage;
    if (kv->is_offloaded()) {
      const std::vector<const std::byte*> offloaded = kv->OffloadedBlocks();
      Require(staging_.Reserve({0, offloaded.size()}), "no memory to stage offloaded blocks");
      for (size_t split = 0; split < offloaded.size(); ++split) {
        if (offloaded[split] != nullptr) global[split] = staging_.AddOffloaded(offloaded[split]);
      }
      staging_.BeginStep();
      stage = [this](int layer) { staging_.BeforeAttention(layer); };
    }
    bool is_launched = false;
    const auto await = [&](int layer) {
      if (!std::exchange(is_launched, true)) launched_ = Clock::now();
      kv->AwaitRestore(layer);
    };
    const auto next =
        absl::MakeSpan(text_).subspan(static_cast<size_t>(begin), static_cast<size_t>(tokens));
    const DevicePart part = {next, begin, 1, {local, global}};
    device_->StartCopyOut(logits_.get(), step_->Run({&part, 1}, await, stage), LogitsBytes());
    Finish();
    staging_.Clear();
    kv->Advance(tokens);
  }

  // Computes a prefix, and copies its objects to pinned memory.
  Prefix NewPrefix(int length) {
    Prefix prefix = {length, {}, std::vector<float>(LogitsBytes() / sizeof(float))};
    InvariantKv kv = NewKv();
    while (kv.length() < length) Step(std::min(length, kv.length() + step_->most_rows()), &kv);
    for (const ObjectId& id : NeededObjects(*layout_, static_cast<uint32_t>(length))) {
      const KvBlock on_host = Take(&host_, layout_->ObjectBytes(id.tokens, id.group));
      const int begin = static_cast<int>(id.begin), end = begin + static_cast<int>(id.tokens);
      Require(kv.StartCopyOut(id, begin, end, on_host.get())->Wait(), "a copy failed");
      prefix.objects.push_back({id, on_host, kv.Share(id)});
    }
    Step(length + kSuffix, &kv);
    std::memcpy(prefix.logits.data(), logits_.get(), LogitsBytes());
    return prefix;
  }

  // Starts to restore the prefix, as InvariantRunner::Restore does.
  void Restore(const Prefix& prefix, From from, InvariantKv* kv) {
    kv->BeginRestore(prefix.length);
    for (const auto& [id, on_host, on_device] : prefix.objects) {
      const bool offloaded = kv->WillOffload(id.group);
      absl::Status added;
      if (from == From::kPool || offloaded) {
        added = kv->Adopt(id, offloaded ? on_host : on_device, offloaded);
      } else {
        const KvBlock& owner = from == From::kHost ? on_host : on_device;
        std::vector<const std::byte*> slices;
        for (size_t i = 0; i < layout_->LayerCount(id.group); ++i) {
          slices.push_back(owner.get() + i * layout_->SliceBytes(id.tokens));
        }
        added = kv->CopyIn(id, slices, from == From::kGpuTier, owner);
      }
      Require(added.ok(), "a restore failed");
    }
    kv->FinishRestore();
  }
  // Waits until all layers are restored.
  void FinishRestore(const InvariantKv& kv) {
    kv.AwaitRestore(model_.shape.layers() - 1);
    Finish();
  }
  // Runs the first step after a restore, and compares its logits with those without a restore.
  void StepSuffix(const Prefix& prefix, InvariantKv* kv) {
    Step(prefix.length + kSuffix, kv);
    ++compared_;
    if (std::memcmp(logits_.get(), prefix.logits.data(), LogitsBytes()) != 0) ++other_;
  }

  void MeasureRestore(const Prefix& prefix) {
    const auto bytes = NeededBytes(*layout_, static_cast<uint32_t>(prefix.length));
    const auto rate = [&] {
      InvariantKv kv = NewKv();
      const double ms = MsOf([&] {
        Restore(prefix, From::kHost, &kv);
        FinishRestore(kv);
      });
      StepSuffix(prefix, &kv);
      return static_cast<double>(bytes) / 1e6 / ms;
    };
    const std::string row = absl::StrCat("rate of a restore of ", prefix.length, " tokens");
    Result(row, "GB/s", Measure(rate));
  }

  // Decodes one sequence while another one is restored.
  void MeasureDecodeBeside(const Prefix& prefix) {
    InvariantKv decoding = NewKv();
    Step(sizes_.context, &decoding);
    const auto decode = [&] { Step(decoding.length() + 1, &decoding); };
    std::vector<double> alone, started, left;
    std::vector<double> beside = Measure([&] {
      alone.push_back(MsOf(decode));
      InvariantKv kv = NewKv();
      started.push_back(MsOf([&] { Restore(prefix, From::kHost, &kv); }));
      const double ms = MsOf(decode);
      left.push_back(MsOf([&] { FinishRestore(kv); }));
      StepSuffix(prefix, &kv);
      return ms;
    });
    for (std::vector<double>* values : {&alone, &started, &left}) values->erase(values->begin());
    Result("decode step alone", "ms", alone);
    Result("decode step beside a restore", "ms", beside);
    Result("host's time to start that restore", "ms", started);
    // If 0, the restore ended during the step.
    Result("time left of that restore after the step", "ms", left);
    std::sort(alone.begin(), alone.end());
    for (double& ms : beside) ms /= alone[kRuns / 2];
    Result("decode step beside a restore over alone", "times", beside);
  }

  void MeasureFirstLaunch(const Prefix& prefix, From from, const std::string& what) {
    const auto launch = [&] {
      InvariantKv kv = NewKv();
      const Clock::time_point begin = Clock::now();
      Restore(prefix, from, &kv);
      StepSuffix(prefix, &kv);
      return MsSince(begin, launched_);
    };
    Result(absl::StrCat("first launch after ", prefix.length, " tokens from ", what), "ms",
           Measure(launch));
  }

  void MeasureOffloaded(const Prefix& prefix) {
    InvariantKv kv = NewKv();
    kv.Offload(&host_);
    Restore(prefix, From::kHost, &kv);
    StepSuffix(prefix, &kv);
    const auto tokens = static_cast<uint32_t>(prefix.length);
    Result(absl::StrCat("bytes of ", tokens, " offloaded tokens"), "GB",
           {static_cast<double>(layout_->ObjectBytes(tokens, LayerGroup::kGlobal)) / 1e9});
    Result(absl::StrCat("token after ", tokens, " offloaded tokens"), "ms",
           Measure([&] { return MsOf([&] { Step(kv.length() + 1, &kv); }); }));
  }

  const Sizes sizes_;
  const std::shared_ptr<Device> device_;
  const std::vector<int32_t> text_;  // of all sequences
  DeviceModel model_;
  std::shared_ptr<const KvLayout> layout_;
  std::unique_ptr<DeviceStep> step_;
  KvBlocks blocks_, host_;
  KvStaging staging_;
  const KvBlock logits_;        // in pinned memory: of the last token of the last step
  Clock::time_point launched_;  // when the last step reached the keys of its first layer
  int compared_ = 0;
  double other_ = 0;
};

}  // namespace

int Main(int argc, char** argv) {
  Require(argc == 3, "usage: device_restore_bench DEVICE 4B|tiny");
  absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(argv[1]);
  Require(device.ok(), std::string(device.status().message()));
  Bench(*std::move(device), SizesOf(argv[2])).Run();
  return 0;
}

}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
