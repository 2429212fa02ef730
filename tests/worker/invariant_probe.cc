// Answers the forward pass's oracle (model_oracle.py) with InvariantGemma, as model_probe does with
// Gemma, and checks what that promises besides:
//   "restored"  for each boundary, the prompt computed in other steps: up to it in steps of 7, the
//   rest
//               in one, in blocks of keys that are another size than the steps
// and every decoded token's logits must have the bits that a prefill of the whole text gives, as
// must a prompt's on each instruction set.
//   invariant_probe MODEL_DIR float32
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "proto/fingerprint.h"
#include "worker/invariant_gemma.h"
#include "worker/kernels/targets.h"

namespace hearth {
namespace {

void RequireOk(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(1);
}

std::vector<float> Logits(const InvariantGemma& gemma, InvariantGemma::Kv* kv,
                          absl::Span<const int32_t> tokens, int want) {
  std::vector<float> logits;
  RequireOk(gemma.Step(kv, tokens, want, &logits));
  return logits;
}

std::string DigestOf(const std::vector<float>& logits) {
  return DigestHex(
      Sha256({reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float)}));
}

std::string InOtherSteps(const InvariantGemma& gemma, const std::vector<int32_t>& ids,
                         size_t boundary) {
  InvariantGemma::Kv kv = gemma.NewKv();
  const absl::Span<const int32_t> all(ids);
  for (size_t at = 0; at < boundary; at += 7) {
    Logits(gemma, &kv, all.subspan(at, std::min<size_t>(7, boundary - at)), 0);
  }
  return DigestOf(Logits(gemma, &kv, all.subspan(boundary), 1));
}

nlohmann::json Answer(const InvariantGemma& gemma, const nlohmann::json& question) {
  auto ids = question.at("ids").get<std::vector<int32_t>>();
  const size_t greedy = question.value("greedy", 0), prompt = ids.size();
  InvariantGemma::Kv kv = gemma.NewKv();
  const absl::Time start = absl::Now();
  std::vector<float> last = Logits(gemma, &kv, ids, 1);
  nlohmann::json answer{{"sha256", DigestOf(last)},
                        {"prefill_ms", absl::ToDoubleMilliseconds(absl::Now() - start)}};
  answer["restored"] = std::vector<std::string>();
  for (const size_t boundary : question.value("restores", std::vector<size_t>())) {
    answer["restored"].push_back(InOtherSteps(gemma, ids, boundary));
  }
  std::vector<float> decoded;
  std::vector<double> decode_ms;
  for (size_t i = 0; i < greedy; ++i) {
    decoded.insert(decoded.end(), last.begin(), last.end());
    ids.push_back(static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
    if (i + 1 == greedy) break;
    const absl::Time step = absl::Now();
    last = Logits(gemma, &kv, {&ids.back(), 1}, 1);
    decode_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - step));
  }
  answer["decode_ms"] = decode_ms;
  answer["greedy"] = std::vector<int32_t>(ids.begin() + static_cast<long>(prompt), ids.end());
  for (const KernelTarget target : UsableTargets()) {
    if (target == KernelTarget::kPlain) continue;  // hours on a real model
    ForceTarget(target);
    if (InOtherSteps(gemma, {ids.begin(), ids.begin() + static_cast<long>(prompt)}, 0) !=
        answer["sha256"]) {
      RequireOk(absl::InternalError(absl::StrCat("other bits on ", KernelTargetName(target))));
    }
  }
  if (greedy > 0) {
    ids.pop_back();
    InvariantGemma::Kv again = gemma.NewKv();
    const std::vector<float> prefilled = Logits(gemma, &again, ids, static_cast<int>(greedy));
    if (DigestOf(prefilled) != DigestOf(decoded)) {
      RequireOk(absl::InternalError("decoded logits have other bits than prefilled ones"));
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
  if (argc < 2) {
    std::cerr << "usage: invariant_probe MODEL_DIR float32" << std::endl;
    return 2;
  }
  const auto gemma = hearth::InvariantGemma::Load(argv[1], /*threads=*/2, /*chunk=*/32);
  hearth::RequireOk(gemma.status());
  std::cout << nlohmann::json{{"ready", true}, {"notes", nlohmann::json::array()}} << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << hearth::Answer(**gemma, nlohmann::json::parse(line)) << std::endl;
  }
  return 0;
}
