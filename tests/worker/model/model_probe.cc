// Answers the oracle scripts in Python: computes a checkpoint's forward pass in canonical steps.
//
//   model_probe MODEL_DIR [DTYPE [DEVICE]]
// Reads one JSON object from each line of standard input; writes one answer to each line of
// standard output:
//   {"ids": [..], "cuts": [..], "chunk": 128, "greedy": 64, "logits": "FILE", "restores": [128]}
//     -> {"greedy": [..], "sha256": "..", "restored": [".."], "steps": 9, "prefill_ms": 1.0,
//         "decode_ms": [..]}
//   For each boundary in "restores" the KV is copied through slices to a second cache, which
//   computes the rest of the prompt; "restored" lists the digests of these logits.
// FILE receives the float32 logits of the prompt's last position and of each decoded position.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "proto/restore_rule.h"
#include "worker/model/torch/gemma.h"

namespace hearth {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(1);
}

// Copies all rows of `from`, through slices, to a new cache with another capacity.
KvCache Moved(const Gemma& gemma, const KvCache& from, int capacity) {
  absl::StatusOr<KvCache> to = gemma.NewKvCache(capacity);
  Require(to.status());
  const int length = from.length();
  to->BeginRestore(length);
  for (int layer = 0; layer < from.num_layers(); ++layer) {
    const int begin = to->first_held(layer);
    std::vector<std::byte> slice((length - begin) * from.token_bytes());
    from.CopyOut(layer, begin, length, begin, length - begin, slice.data());
    to->CopyIn(layer, begin, length, begin, length - begin, slice.data());
  }
  to->FinishRestore(length);
  return *std::move(to);
}

std::string LogitsDigest(const std::vector<float>& logits) {
  return DigestHex(
      Sha256({reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float)}));
}

nlohmann::json Answer(const Gemma& gemma, const nlohmann::json& question) {
  const auto ids = question.at("ids").get<std::vector<int32_t>>();
  const auto cuts = question.value("cuts", std::vector<uint32_t>());
  const auto restores = question.value("restores", std::vector<uint32_t>());
  const size_t greedy = question.value("greedy", 0);
  const int capacity = static_cast<int>(ids.size() + greedy + 1);
  absl::StatusOr<KvCache> kv = gemma.NewKvCache(capacity);
  Require(kv.status());
  std::vector<float> logits;
  const auto steps = StepEnds(ids.size(), cuts, question.value("chunk", 128));
  const auto compute = [&](KvCache* cache, uint32_t begin, uint32_t end) {
    Require(gemma.Step(cache, absl::MakeConstSpan(ids).subspan(begin, end - begin), &logits));
  };
  std::vector<std::string> restored;
  double prefill_ms = 0;
  uint32_t at = 0;
  for (auto step = steps.begin(); step != steps.end(); ++step) {
    if (std::count(restores.begin(), restores.end(), at) > 0) {
      KvCache moved = Moved(gemma, *kv, capacity + 333);
      uint32_t moved_at = at;
      for (auto rest = step; rest != steps.end(); ++rest) {
        compute(&moved, moved_at, *rest);
        moved_at = *rest;
      }
      restored.push_back(LogitsDigest(logits));
    }
    const Clock::time_point begin = Clock::now();
    compute(&*kv, at, *step);
    prefill_ms += MillisecondsSince(begin);
    at = *step;
  }
  nlohmann::json answer{
      {"prefill_ms", prefill_ms}, {"steps", steps.size()}, {"restored", restored}};
  std::ofstream file(question.value("logits", std::string("/dev/null")), std::ios::binary);
  std::vector<int32_t> chosen;
  std::vector<double> decode_ms;
  answer["sha256"] = LogitsDigest(logits);
  for (size_t i = 0; i < greedy; ++i) {
    file.write(reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float));
    chosen.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (i + 1 == greedy) break;
    const Clock::time_point step = Clock::now();
    Require(gemma.Step(&*kv, {&chosen.back(), 1}, &logits));
    decode_ms.push_back(MillisecondsSince(step));
  }
  answer["greedy"] = chosen;
  answer["decode_ms"] = decode_ms;
  return answer;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: model_probe MODEL_DIR [DTYPE [DEVICE]]" << std::endl;
    return 2;
  }
  hearth::GemmaOptions options;
  options.dtype = argc > 2 ? argv[2] : "float32";
  options.device = argc > 3 ? argv[3] : "cpu";
  const auto gemma = hearth::Gemma::Load(argv[1], options);
  hearth::Require(gemma.status());
  std::cout << nlohmann::json{{"ready", true}, {"notes", (*gemma)->notes()}} << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << hearth::Answer(**gemma, nlohmann::json::parse(line)) << std::endl;
  }
  return 0;
}
