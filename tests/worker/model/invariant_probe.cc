// Answers the oracle scripts (model_oracle.py) with InvariantGemma in float32; the protocol is that
// of model_probe. Also checks the promises of the exactness class invariant:
//
//   "restored": for each boundary, the digest of the prompt's logits when the prompt is computed in
//   steps of 7 tokens up to the boundary, and then in one step. "chunk" is the KV block size
//   (default: 32).
//   "adapter": folder of a LoRA adapter for the whole text; also tested in steps with other texts.
//
// The logits of each decoded token must have the same bits as in a prefill of the whole text. The
// prompt's logits must have the same bits on each instruction set, and with 1, 2 and 3 threads.
//   invariant_probe MODEL_DIR [float32]
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "proto/fingerprint.h"
#include "worker/kernels/targets.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

void RequireOk(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(1);
}

using Adapter = std::shared_ptr<const LoraAdapter>;

std::vector<float> Logits(const InvariantGemma& gemma, const Adapter& adapter,
                          InvariantGemma::Kv* kv, absl::Span<const int32_t> tokens, int want) {
  StepLogits logits;
  if (kv->length() == 0) kv->UseAdapter(adapter);
  const InvariantPart part{kv, tokens, want, &logits};
  RequireOk(gemma.Step({&part, 1}));
  return std::move(logits).Take();
}

std::string DigestOf(const std::vector<float>& logits) {
  return DigestHex(
      Sha256({reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float)}));
}

std::string InOtherSteps(const InvariantGemma& gemma, const Adapter& adapter,
                         const std::vector<int32_t>& ids, size_t boundary) {
  InvariantGemma::Kv kv = gemma.NewKv();
  const absl::Span<const int32_t> all(ids);
  for (size_t at = 0; at < boundary; at += 7) {
    Logits(gemma, adapter, &kv, all.subspan(at, std::min<size_t>(7, boundary - at)), 0);
  }
  return DigestOf(Logits(gemma, adapter, &kv, all.subspan(boundary), 1));
}

// Computes one step with three sequences: the text with the adapter, without it, and again with it.
// Returns the digest of the logits with the adapter.
std::string BatchedWithOthers(const InvariantGemma& gemma, const Adapter& adapter,
                              const std::vector<int32_t>& ids) {
  InvariantGemma::Kv first = gemma.NewKv(), plain = gemma.NewKv(), last = gemma.NewKv();
  StepLogits first_logits, plain_logits, last_logits;
  first.UseAdapter(adapter);
  last.UseAdapter(adapter);
  const InvariantPart parts[] = {{&first, ids, 1, &first_logits},
                                 {&plain, ids, 1, &plain_logits},
                                 {&last, ids, 1, &last_logits}};
  RequireOk(gemma.Step(parts));
  const std::string digest = DigestOf(std::move(first_logits).Take());
  const std::string plain_digest = DigestOf(std::move(plain_logits).Take());
  if (DigestOf(std::move(last_logits).Take()) != digest ||
      (adapter != nullptr && plain_digest == digest)) {
    RequireOk(absl::InternalError(
        "in a step with other texts, the adapter's text has different bits, or those without it"));
  }
  if (plain_digest != InOtherSteps(gemma, nullptr, ids, 0)) {
    RequireOk(absl::InternalError(
        "in a step with an adapter's text, the text without it has different bits"));
  }
  return digest;
}

// The model with KV blocks of `chunk` tokens, loaded once for each number of threads; the model
// with two threads answers questions.
class Models {
 public:
  using OnThreads = std::map<int, std::unique_ptr<InvariantGemma>>;
  explicit Models(std::string dir) : dir_(std::move(dir)) {}

  // The result is valid until the next call.
  const OnThreads& WithChunk(int chunk) {
    if (chunk != chunk_) models_.clear();
    chunk_ = chunk;
    for (const int threads : {1, 2, 3}) {
      if (models_.count(threads) > 0) continue;
      auto gemma = InvariantGemma::Load(dir_, {threads, chunk});
      RequireOk(gemma.status());
      models_[threads] = *std::move(gemma);
    }
    return models_;
  }

 private:
  const std::string dir_;
  int chunk_ = 0;
  OnThreads models_;
};

// Requires that a prompt has these bits on every instruction set and with every number of threads.
void RequireDigest(const Models::OnThreads& models, const Adapter& adapter,
                   const std::vector<int32_t>& prompt, const std::string& digest) {
  for (const KernelTarget target : UsableTargets()) {
    if (target == KernelTarget::kPlain) continue;  // plain takes hours on a real model
    ForceTarget(target);
    for (const auto& [threads, gemma] : models) {
      if (InOtherSteps(*gemma, adapter, prompt, 0) == digest) continue;
      RequireOk(absl::InternalError(
          absl::StrCat("different bits on ", KernelTargetName(target), ", ", threads, " threads")));
    }
  }
  ForceTarget(UsableTargets().back());
}

nlohmann::json Answer(Models* all, const nlohmann::json& question) {
  const Models::OnThreads& models = all->WithChunk(question.value("chunk", 32));
  const InvariantGemma& gemma = *models.at(2);
  auto ids = question.at("ids").get<std::vector<int32_t>>();
  const size_t greedy = question.value("greedy", 0), prompt = ids.size();
  Adapter adapter;
  if (question.contains("adapter")) {
    auto loaded = gemma.LoadAdapter(question.at("adapter").get<std::string>());
    RequireOk(loaded.status());
    adapter = *std::move(loaded);
    if (BatchedWithOthers(gemma, adapter, ids) != InOtherSteps(gemma, adapter, ids, 0)) {
      RequireOk(
          absl::InternalError("in a step with other texts, the adapter's text has different bits"));
    }
  }
  InvariantGemma::Kv kv = gemma.NewKv();
  const absl::Time start = absl::Now();
  std::vector<float> last = Logits(gemma, adapter, &kv, ids, 1);
  nlohmann::json answer{{"sha256", DigestOf(last)},
                        {"prefill_ms", absl::ToDoubleMilliseconds(absl::Now() - start)}};
  answer["restored"] = std::vector<std::string>();
  for (const size_t boundary : question.value("restores", std::vector<size_t>())) {
    answer["restored"].push_back(InOtherSteps(gemma, adapter, ids, boundary));
  }
  std::vector<float> decoded;
  std::vector<double> decode_ms;
  for (size_t i = 0; i < greedy; ++i) {
    decoded.insert(decoded.end(), last.begin(), last.end());
    ids.push_back(static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
    if (i + 1 == greedy) break;
    const absl::Time step = absl::Now();
    last = Logits(gemma, adapter, &kv, {&ids.back(), 1}, 1);
    decode_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - step));
  }
  answer["decode_ms"] = decode_ms;
  answer["greedy"] = std::vector<int32_t>(ids.begin() + static_cast<long>(prompt), ids.end());
  RequireDigest(models, adapter, {ids.begin(), ids.begin() + static_cast<long>(prompt)},
                answer["sha256"].get<std::string>());
  if (greedy > 0) {
    ids.pop_back();
    InvariantGemma::Kv again = gemma.NewKv();
    const std::vector<float> prefilled =
        Logits(gemma, adapter, &again, ids, static_cast<int>(greedy));
    if (DigestOf(prefilled) != DigestOf(decoded)) {
      RequireOk(absl::InternalError("decoded and prefilled logits have different bits"));
    }
  }
  std::ofstream(question.value("logits", std::string("/dev/null")), std::ios::binary)
      .write(reinterpret_cast<const char*>(decoded.data()),
             static_cast<long>(decoded.size() * sizeof(float)));
  return answer;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3 || (argc == 3 && std::string(argv[2]) != "float32")) {
    std::cerr << "usage: invariant_probe MODEL_DIR [float32]" << std::endl;
    return 2;
  }
  hearth::Models models(argv[1]);
  models.WithChunk(32);
  std::cout << nlohmann::json{{"ready", true}, {"notes", nlohmann::json::array()}} << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << hearth::Answer(&models, nlohmann::json::parse(line)) << std::endl;
  }
  return 0;
}
