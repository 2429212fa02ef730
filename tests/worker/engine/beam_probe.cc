// Helper of beam_oracle.py: runs beam searches on an engine in class invariant.
//
//  beam_probe MODEL_DIR [THREADS]
//
// Reads one JSON object per line from standard input, and writes one per line to standard output:
//  {"ids": [..], "beams": 4, "max_new_tokens": 20, "length_penalty": 1.0, "early_stopping": false,
//   "ignore_eos": true, "stop_below": 0}
//  -> {"tokens": [..], "reason": "eos", "score": -1.5, "cached_tokens": 0, "ms": 10.5}
// A beam ends, as at a stop string, after a token whose id modulo 5 is below "stop_below".
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "nlohmann/json.hpp"
#include "worker/engine/engine.h"

namespace hearth {
namespace {

const char* NameOf(FinishReason reason) {
  return reason == FinishReason::kEos ? "eos" : reason == FinishReason::kStop ? "stop" : "length";
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(1);
}

EngineRequest RequestOf(const nlohmann::json& question) {
  EngineRequest request;
  request.token_ids = question.at("ids").get<std::vector<int32_t>>();
  request.max_new_tokens = question.at("max_new_tokens").get<uint32_t>();
  request.search.beams = question.at("beams").get<uint32_t>();
  request.search.length_penalty = question.value("length_penalty", 1.0F);
  request.search.early_stopping = question.value("early_stopping", false);
  request.ignore_eos = question.value("ignore_eos", false);
  return request;
}

nlohmann::json Answer(Engine* engine, const nlohmann::json& question) {
  nlohmann::json answer;
  std::vector<int32_t> tokens;
  absl::Notification ended;
  EngineCallbacks callbacks;
  callbacks.on_started = [&](const StartedInfo& info) {
    answer["cached_tokens"] = info.cached_tokens;
  };
  callbacks.on_token = [&](const SampledToken& token) {
    tokens.push_back(token.id);
    return true;
  };
  callbacks.on_finished = [&](const FinishedInfo& info) {
    answer["reason"] = NameOf(info.reason);
    answer["score"] = info.samples[0].beam_score;
    ended.Notify();
  };
  callbacks.stops = [below = question.value("stop_below", 0)](absl::Span<const int32_t> ids) {
    return ids.back() % 5 < below;
  };
  callbacks.on_error = [&](const absl::Status& status) {
    Require(status);
    ended.Notify();
  };
  const auto begin = std::chrono::steady_clock::now();
  Require(engine->Submit(RequestOf(question), std::move(callbacks)).status());
  ended.WaitForNotification();
  const auto took = std::chrono::steady_clock::now() - begin;
  answer["ms"] = std::chrono::duration<double, std::milli>(took).count();
  answer["tokens"] = tokens;
  return answer;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: beam_probe MODEL_DIR [THREADS]" << std::endl;
    return 2;
  }
  hearth::EngineOptions options;
  options.model_dir = argv[1];
  options.exactness = hearth::ExactnessChoice::kInvariant;
  options.arithmetic = hearth::ArithmeticChoice::kFloat32;
  options.kv_dtype = hearth::KvDtypeChoice::kFloat32;
  options.threads = argc > 2 ? std::atoi(argv[2]) : 0;
  const auto engine = hearth::Engine::Create(options);
  hearth::Require(engine.status());
  std::cout << nlohmann::json{{"ready", true}, {"notes", (*engine)->notes()}} << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << hearth::Answer(engine->get(), nlohmann::json::parse(line)) << std::endl;
  }
  return 0;
}
