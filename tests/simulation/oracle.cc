#include "tests/simulation/oracle.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>

#include "absl/synchronization/notification.h"
#include "proto/restore_rule.h"
#include "tests/support/tiny_checkpoint.h"

namespace hearth {
namespace {

constexpr int kVocabulary = 160;
constexpr size_t kPrompts = 24;

[[noreturn]] void OracleFailed(const std::string& why) {
  std::fprintf(stderr, "oracle: %s\n", why.c_str());
  std::abort();
}

// Returns groups of prompts that share prefixes. Some prompts have cuts inside a chunk.
std::vector<SimPrompt> MakePrompts() {
  std::mt19937_64 random(12);
  const auto token = [&] { return static_cast<int32_t>(3 + random() % (kVocabulary - 3)); };
  std::vector<SimPrompt> prompts;
  std::vector<std::vector<int32_t>> families(5);
  for (auto& family : families) {
    for (int i = 0; i < 200; ++i) family.push_back(token());
  }
  while (prompts.size() < kPrompts) {
    SimPrompt prompt;
    const auto& family = families[random() % families.size()];
    const size_t shared = 20 + random() % 120, own = random() % 60;
    prompt.tokens.assign(family.begin(), family.begin() + static_cast<ptrdiff_t>(shared));
    for (size_t i = 0; i < own; ++i) prompt.tokens.push_back(token());
    const uint32_t tokens = static_cast<uint32_t>(prompt.tokens.size());
    const uint32_t cut = 10 + static_cast<uint32_t>(random() % 3) * 23;
    if (random() % 2 == 0 && cut < tokens) prompt.cuts.push_back(cut);
    if (random() % 3 == 0) prompt.cuts.push_back(tokens);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace

Oracle& Oracle::Get() {
  static auto* const oracle = new Oracle;
  return *oracle;
}

Oracle::Oracle() : prompts_(MakePrompts()) {
  TinyGeometry geometry;
  geometry.layer_types = "llg";
  geometry.heads = 2;
  geometry.kv_heads = 1;
  geometry.context_tokens = 256;
  options_.exactness = ExactnessChoice::kExact;
  options_.model_dir = NewTinyCheckpoint(geometry, "simulation");
  options_.dtype = "float32";
  options_.chunk_tokens = 16;
  options_.threads = 1;
  options_.memory.pool_bytes = 0;
  auto engine = Engine::Create(options_);
  auto gemma = Gemma::Load(options_.model_dir, GemmaOptions());
  if (!engine.ok() || !gemma.ok()) OracleFailed(engine.status().ToString());
  engine_ = *std::move(engine);
  gemma_ = *std::move(gemma);
}

const Oracle::Answer& Oracle::AnswerTo(size_t prompt) {
  const auto [it, is_new] = answers_.try_emplace(prompt);
  if (!is_new) return it->second;
  EngineRequest request;
  request.token_ids = prompts_[prompt].tokens;
  request.breakpoints = prompts_[prompt].cuts;
  request.max_new_tokens = kNewTokens;
  request.ignore_eos = true;
  request.cache = CacheMode::kOff;
  absl::Notification ended;
  Answer& answer = it->second;
  EngineCallbacks callbacks;
  callbacks.on_token = [&](const SampledToken& token) {
    answer.tokens.push_back(token.id);
    return true;
  };
  callbacks.on_finished = [&](const FinishedInfo& info) {
    answer.first_logits = info.first_logits_sha256;
    ended.Notify();
  };
  callbacks.on_error = [&](const absl::Status& status) { OracleFailed(status.ToString()); };
  const auto handle = engine_->Submit(request, callbacks);
  if (!handle.ok()) OracleFailed(handle.status().ToString());
  ended.WaitForNotification();
  return answer;
}

const Oracle::Rows& Oracle::RowsOf(size_t prompt) {
  const auto [it, is_new] = rows_.try_emplace(prompt);
  if (!is_new) return it->second;
  const SimPrompt& of = prompts_[prompt];
  const int tokens = static_cast<int>(of.tokens.size());
  KvCache kv = gemma_->NewKvCache(tokens).value();
  Rows& rows = it->second;
  rows.assign(static_cast<size_t>(kv.num_layers()), std::vector<std::string>(of.tokens.size()));
  int begin = 0;
  for (const uint32_t step : StepEnds(of.tokens.size(), of.cuts, options_.chunk_tokens)) {
    const int end = static_cast<int>(step);
    const auto taken = absl::MakeConstSpan(of.tokens).subspan(begin, end - begin);
    if (!gemma_->Step(&kv, taken, nullptr).ok()) OracleFailed("a step");
    for (int layer = 0; layer < kv.num_layers(); ++layer) {
      for (int at = begin; at < end; ++at) {
        std::string& row = rows[layer][at];
        row.resize(static_cast<size_t>(kv.token_bytes()));
        kv.CopyOut(layer, at, at + 1, at, 1, reinterpret_cast<std::byte*>(row.data()));
      }
    }
    begin = end;
  }
  return rows;
}

std::string Oracle::SliceOf(size_t prompt, const ObjectId& id, uint32_t layer) {
  const std::vector<std::string>& rows = RowsOf(prompt)[layer];
  const size_t runs = 2 * layout().kv_heads, bytes = rows[0].size() / runs;
  std::string slice;
  for (size_t run = 0; run < runs; ++run) {
    for (uint32_t at = id.begin; at < id.begin + id.tokens; ++at) {
      slice.append(rows[at], run * bytes, bytes);
    }
  }
  return slice;
}

}  // namespace hearth
