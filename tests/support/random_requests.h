// RandomRequests: sends random requests to an InvariantGemma, and checks that each token has the
// same logits as in a cold prefill of the whole text.
//
// Requests are cold, or restored at a random boundary by reference and by copy; they run in steps
// of 1, 7, 128 or 512 tokens, alone or together with seven other sequences, and on 1, 2 and 3
// threads; on every vector instruction set, with each integer kernel, and on a device. A device
// restores from results of the CPU, and the CPU from those of the device. If StoreKv was called,
// the sequence under test and half of the other sequences are quantized or, on a device, offloaded.
// Thread safety: none,
// because it changes the instruction set of the whole process; at the end it sets the best one.
#ifndef HEARTH_TESTS_SUPPORT_RANDOM_REQUESTS_H_
#define HEARTH_TESTS_SUPPORT_RANDOM_REQUESTS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "proto/kv_layout.h"
#include "proto/restore_rule.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/kernels/integer_product.h"
#include "worker/kernels/targets.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {

// Returns the geometries under test: one with a window of 100 and 8 KV heads, and one with a window
// of 512 and one KV head.
inline std::vector<TinyGeometry> RequestGeometries() {
  TinyGeometry many, one;
  many.layer_types = "lgl";
  many.window = 100;
  many.heads = many.kv_heads = 8;
  many.context_tokens = 350;
  one.layer_types = "llg";
  one.window = 512;
  one.kv_heads = 1;
  one.context_tokens = 750;
  return {many, one};
}

class RandomRequests {
 public:
  static constexpr int kThreads = 3;

  // `longest`: maximum number of tokens in a text; at most the model's number of positions.
  // `first`: seed of the first request. `form`: how weights are stored; by default, weights in
  // blocks are multiplied as integers. `device`: if not null, odd requests run on the device, and
  // even requests restore from it. Every third request restores from the processor on which it
  // runs.
  static absl::StatusOr<RandomRequests> Open(const std::string& model_dir, int chunk, int longest,
                                             uint64_t first, WeightForm form = WeightForm::kStored,
                                             KvDtype kv_dtype = KvDtype::kFloat32,
                                             std::shared_ptr<Device> device = nullptr,
                                             Arithmetic arithmetic = Arithmetic::kInt8) {
    RandomRequests requests(longest, first);
    for (int threads = 1; threads <= kThreads; ++threads) {
      InvariantGemmaOptions options{threads, chunk};
      options.weights = form;
      options.arithmetic = arithmetic;
      options.kv_dtype = kv_dtype;
      auto model = InvariantGemma::Load(model_dir, options);
      if (!model.ok()) return model.status();
      requests.models_.push_back(*std::move(model));
    }
    if (device == nullptr) return requests;
    InvariantGemmaOptions options{2, chunk};
    options.device = std::move(device);
    options.weights = form;
    options.arithmetic = arithmetic;
    options.kv_dtype = kv_dtype;
    auto model = InvariantGemma::Load(model_dir, options);
    if (!model.ok()) return model.status();
    requests.on_device_ = *std::move(model);
    return requests;
  }

  // How later requests store their keys and values.
  void StoreKv(const KvQuantization& quantization, bool offloads) {
    quantization_ = quantization;
    offloads_ = offloads;
  }

  // Runs the next request. Returns "" if all logits are equal, else a description of the request
  // and of the first difference.
  std::string Next() {
    state_ = ++seed_ * 2 + 1;
    const std::vector<int32_t> text = Text(1 + Draw(longest_));
    const int length = static_cast<int>(text.size());
    const InvariantGemma& first = *models_[1];
    ForceTarget(UsableTargets().back());
    const std::vector<IntegerKernel> kernels = UsableIntegerKernels();
    if (!kernels.empty()) ForceIntegerKernel(kernels.back());
    std::vector<uint64_t> want;
    InvariantGemma::Kv cold = NewKv(first);
    if (std::string error = Steps(first, text, kPieceTokens, 0, &cold, &want); !error.empty()) {
      return error;
    }
    const InvariantGemma* at = models_[static_cast<size_t>(Draw(kThreads))].get();
    const InvariantGemma* from = &first;
    if (on_device_ != nullptr) {
      (seed_ % 2 == 0 ? from : at) = on_device_.get();
      if (seed_ % 3 == 0) from = at;
    }
    const InvariantGemma& model = *at;
    const std::vector<KernelTarget> targets = FastTargets();
    const KernelTarget target =
        targets[static_cast<size_t>(Draw(static_cast<int>(targets.size())))];
    const int boundary = Draw(2) == 0 ? 0 : Draw(length);
    const int step = kSteps[static_cast<size_t>(Draw(4))], others = 7 * Draw(2);
    const std::string what =
        absl::StrCat("request ", seed_, ": ", length, " tokens, restored ", boundary, ", steps of ",
                     step, ", beside ", others, " others, ", model.device_kind(), ", ",
                     model.threads(), " threads, ", KernelTargetName(target), " ",
                     kernels.empty() ? "" : IntegerKernelName(kernels[seed_ % kernels.size()]));
    InvariantGemma::Kv kv = NewKv(model);
    absl::Status restored = Restore(*from, text, boundary, &kv);
    ForceTarget(target);
    if (!kernels.empty()) ForceIntegerKernel(kernels[seed_ % kernels.size()]);
    std::vector<uint64_t> is(want.begin(), want.begin() + boundary);
    std::string error = restored.ok() ? Steps(model, text, step, others, &kv, &is)
                                      : std::string(restored.message());
    ForceTarget(UsableTargets().back());
    if (!kernels.empty()) ForceIntegerKernel(kernels.back());
    if (!error.empty()) return absl::StrCat(what, ": ", error);
    for (size_t i = 0; i < want.size(); ++i) {
      if (want[i] != is[i]) return absl::StrCat(what, ": token ", i, " has other logits");
    }
    return "";
  }

 private:
  static constexpr int kSteps[] = {1, 7, 128, 512}, kPieceTokens = 64;

  RandomRequests(int longest, uint64_t first) : longest_(longest), seed_(first - 1) {}

  InvariantGemma::Kv NewKv(const InvariantGemma& model) const {
    InvariantGemma::Kv kv = model.NewKv(quantization_);
    if (offloads_ && kv.is_on_device()) kv.Offload(model.offload_blocks());
    return kv;
  }
  int Draw(int below) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((state_ >> 33) % static_cast<uint64_t>(below));
  }
  std::vector<int32_t> Text(int length) {
    std::vector<int32_t> text;
    for (int i = 0; i < length; ++i) text.push_back(Draw(models_[0]->config().vocab_size));
    return text;
  }
  static std::vector<KernelTarget> FastTargets() {
    std::vector<KernelTarget> targets = UsableTargets();
    // leaves out the scalar instruction set, which needs minutes
    if (targets.size() > 1) targets.erase(targets.begin());
    return targets;
  }

  // Computes the rest of the text in steps. Appends a digest of each token's logits to `digests`.
  std::string Steps(const InvariantGemma& model, const std::vector<int32_t>& text, int step,
                    int others, InvariantGemma::Kv* kv, std::vector<uint64_t>* digests) {
    const auto vocabulary = static_cast<size_t>(model.config().vocab_size);
    std::vector<InvariantGemma::Kv> other_kvs;
    std::vector<std::vector<int32_t>> other_texts(static_cast<size_t>(others));
    for (int i = 0; i < others; ++i) other_kvs.push_back(i % 2 == 0 ? NewKv(model) : model.NewKv());
    StepLogits logits;
    for (int at = kv->length(); at < static_cast<int>(text.size()); at += step) {
      const int count = std::min(step, static_cast<int>(text.size()) - at);
      std::vector<InvariantGemma::Part> parts;
      // number of this sequence among the sequences of the step
      const int place = others == 0 ? 0 : Draw(others);
      for (int i = 0; i < std::max(others, 1); ++i) {
        if (i == place) {
          parts.push_back({kv, {text.data() + at, static_cast<size_t>(count)}, count, &logits});
        }
        if (others == 0 || other_kvs[static_cast<size_t>(i)].length() > longest_ - 20) continue;
        std::vector<int32_t>& tokens = other_texts[static_cast<size_t>(i)];
        tokens = Text(Draw(3) == 0 ? 1 + Draw(19) : 1);
        parts.push_back({&other_kvs[static_cast<size_t>(i)], tokens});
      }
      if (absl::Status s = model.Step(parts); !s.ok()) return std::string(s.message());
      for (size_t row = 0; row < static_cast<size_t>(count); ++row) {
        digests->push_back(
            SliceDigest(logits.values().data() + row * vocabulary, vocabulary * sizeof(float)));
      }
    }
    return "";
  }

  // Restores a prefix like a worker: whole chunks by reference, the rest by copy. Between host and
  // device everything is copied.
  absl::Status Restore(const InvariantGemma& from, const std::vector<int32_t>& text, int boundary,
                       InvariantGemma::Kv* kv) const {
    InvariantGemma::Kv source = NewKv(from);
    // The second step offloads the chunks that the first step completes.
    for (const int end : {boundary - 1, boundary}) {
      if (end <= source.length()) continue;
      const auto count = static_cast<size_t>(end - source.length());
      absl::Status computed =
          from.Step(&source, {text.data() + source.length(), count}, 0, nullptr);
      if (!computed.ok()) return computed;
    }
    if (boundary == 0) return absl::OkStatus();
    const KvLayout& layout = kv->layout();
    kv->BeginRestore(boundary);
    for (const ObjectId& id : NeededObjects(layout, static_cast<uint32_t>(boundary))) {
      KvBlock block = source.Share(id);
      const bool from_host = kv->is_offloaded() && id.group == LayerGroup::kGlobal;
      const bool is_on_device = source.is_on_device() && !source.IsOffloaded(id);
      if (block != nullptr && is_on_device == (kv->is_on_device() && !from_host)) {
        if (absl::Status s = kv->Adopt(id, std::move(block), from_host); !s.ok()) return s;
        continue;
      }
      const auto slices = std::make_shared<std::vector<std::vector<std::byte>>>();
      std::vector<const std::byte*> shown;
      const int begin = static_cast<int>(id.begin), tokens = static_cast<int>(id.tokens);
      for (const uint32_t layer : layout.LayersOf(id.group)) {
        const int number = static_cast<int>(layer);
        slices->emplace_back(layout.SliceBytes(id.tokens));
        source.CopyOut(number, std::max(begin, source.first_held(number)), begin + tokens, begin,
                       tokens, slices->back().data());
      }
      for (const auto& slice : *slices) shown.push_back(slice.data());
      if (absl::Status s = kv->CopyIn(id, shown, false, slices); !s.ok()) return s;
    }
    kv->FinishRestore();
    return absl::OkStatus();
  }

  const int longest_;
  KvQuantization quantization_;
  bool offloads_ = false;
  uint64_t seed_, state_ = 0;
  std::vector<std::unique_ptr<InvariantGemma>> models_;  // models with 1, 2 and 3 threads
  std::unique_ptr<InvariantGemma> on_device_;            // null: there is no device
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_RANDOM_REQUESTS_H_
