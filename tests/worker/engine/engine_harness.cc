#include "tests/worker/engine/engine_harness.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/restore_rule.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

std::string TestDevice() {
  const char* device = std::getenv("HEARTH_TEST_DEVICE");
  return device == nullptr ? "cpu" : device;
}

// Removes the checkpoint folders at the end of the process.
struct CheckpointFolders {
  ~CheckpointFolders() {
    std::error_code ignored;
    for (const auto& [key, dir] : dirs) std::filesystem::remove_all(dir, ignored);
  }
  std::map<std::string, std::string> dirs;
};

}  // namespace

void Collector::Wait(absl::Notification* event) {
  // HEARTH_HANG_S: for runs with a real model, whose answers take minutes
  const char* const seconds = std::getenv("HEARTH_HANG_S");
  const absl::Duration limit = seconds == nullptr ? kHang : absl::Seconds(std::atoi(seconds));
  if (!event->WaitForNotificationWithTimeout(limit)) Die("a callback did not come");
}

Collector::~Collector() {
  if (submitted_) WaitAll();
}

void Collector::WaitAll() {
  WaitEnd();
  if (writes_ && error.ok()) WaitPublished();
}

EngineCallbacks Collector::Callbacks(bool writes) {
  submitted_ = true;
  writes_ = writes;
  EngineCallbacks callbacks;
  callbacks.on_started = [this](const StartedInfo& info) {
    started = info;
    started_.Notify();
  };
  callbacks.on_token = [this](const SampledToken& token) {
    tokens.push_back(token.id);
    if (tokens.size() == 1) first_token_.Notify();
    return on_token == nullptr || on_token(tokens.size() - 1);
  };
  callbacks.on_finished = [this](const FinishedInfo& info) {
    finished = info;
    ended_.Notify();
  };
  callbacks.on_error = [this](const absl::Status& status) {
    error = status;
    ended_.Notify();
  };
  callbacks.on_published = [this](const PublishOutcome& published) {
    if (!ended_.HasBeenNotified()) Die("on_published came before on_finished");
    outcome = published;
    published_.Notify();
  };
  return callbacks;
}

std::vector<int32_t> Prompt(size_t tokens, uint64_t seed, int vocab_size) {
  std::vector<int32_t> prompt;
  uint64_t state = seed;
  for (size_t i = 0; i < tokens; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    prompt.push_back(static_cast<int32_t>(3 + (state >> 33) % (vocab_size - 3)));
  }
  return prompt;
}

std::vector<int32_t> ForkedPrompt(size_t head, size_t tokens, uint64_t head_seed,
                                  uint64_t tail_seed) {
  std::vector<int32_t> prompt = Prompt(head, head_seed);
  const std::vector<int32_t> tail = Prompt(tokens - head, tail_seed);
  prompt.insert(prompt.end(), tail.begin(), tail.end());
  return prompt;
}

EngineOptions TestWorker::SmallOptions() {
  EngineOptions options;
  options.exactness = ExactnessChoice::kExact;
  options.dtype = "float32";
  options.chunk_tokens = 16;
  options.threads = 2;
  options.cache.load = LoadChoice::kAlways;
  options.cache.fetch_budget = kHang;  // long; tests of timeouts set a shorter budget
  return options;
}

TestWorker::TestWorker(const std::string& model_dir, EngineOptions options,
                       std::shared_ptr<MemoryPrefixCache> cache, bool with_cache)
    : cache_(std::move(cache)) {
  options.model_dir = model_dir;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(options);
  if (!engine.ok()) Die(engine.status().ToString());
  engine_ = *std::move(engine);
  if (!with_cache) return;
  if (cache_ == nullptr) cache_ = std::make_shared<MemoryPrefixCache>(engine_->layout());
  engine_->SetCache(cache_.get());
}

std::shared_ptr<EngineRequestHandle> TestWorker::Submit(const EngineRequest& request,
                                                        Collector* collector) {
  EngineRequest completed = request;  // ignores errors: Submit reports them
  engine_->Complete(&completed).IgnoreError();
  auto handle = engine_->Submit(completed, collector->Callbacks(completed.writes()));
  if (!handle.ok()) Die(handle.status().ToString());
  return *std::move(handle);
}

std::unique_ptr<Collector> TestWorker::Run(const EngineRequest& request) {
  auto collector = std::make_unique<Collector>();
  Submit(request, collector.get());
  collector->WaitAll();
  return collector;
}

EngineRequest Request(std::vector<int32_t> prompt, std::vector<uint32_t> breakpoints,
                      uint32_t max_new_tokens) {
  EngineRequest request;
  request.token_ids = std::move(prompt);
  request.breakpoints = std::move(breakpoints);
  request.max_new_tokens = max_new_tokens;
  request.ignore_eos = true;
  return request;
}

EngineOptions InvariantOptions(int threads) {
  static const TestFolder remembered;
  EngineOptions options = TestWorker::SmallOptions();
  options.digest_cache_dir = remembered.path();
  options.exactness = ExactnessChoice::kInvariant;
  options.device = TestDevice();
  options.threads = threads;
  return options;
}

uint64_t ChunkBytes(const KvLayout& layout) {
  return layout.ObjectBytes(layout.chunk_tokens, LayerGroup::kGlobal) +
         layout.ObjectBytes(layout.chunk_tokens, LayerGroup::kLocal);
}

const std::vector<NamedGeometry>& Geometries() {
  static const auto* const geometries = [] {
    auto* list = new std::vector<NamedGeometry>(4);
    (*list)[0] = {"WindowBelowChunk", {}};
    (*list)[0].geometry.window = 8;
    (*list)[0].geometry.kv_heads = 1;
    (*list)[1] = {"WindowOfSeveralChunks", {}};
    (*list)[1].geometry.window = 41;
    (*list)[1].geometry.layer_types = "llllg";
    (*list)[1].geometry.kv_heads = 1;
    (*list)[2] = {"SeveralKvHeads", {}};
    (*list)[2].geometry.kv_heads = 4;
    (*list)[2].geometry.window = 24;
    (*list)[2].geometry.layer_types = "lgllgg";
    (*list)[3] = (*list)[2];
    (*list)[3].name = "SeveralKvHeadsBfloat16";
    (*list)[3].dtype = "bfloat16";
    return list;
  }();
  return *geometries;
}

const std::string& ModelDir(const TinyGeometry& geometry) {
  static CheckpointFolders folders;
  const std::string key =
      absl::StrCat(geometry.layer_types, ".", geometry.window, ".", geometry.kv_heads, ".",
                   geometry.vocab_size, ".", geometry.seed);
  auto it = folders.dirs.find(key);
  if (it == folders.dirs.end()) {
    TinyGeometry written = geometry;
    written.bfloat16 = TestDevice() != "cpu";
    it = folders.dirs.emplace(key, NewTinyCheckpoint(written, "engine")).first;
  }
  return it->second;
}

uint64_t SettledKvBytes(TestWorker* worker, const std::vector<uint32_t>& boundaries) {
  const KvLayout& layout = (*worker)->layout();
  std::set<ObjectId> chunks;
  uint64_t bytes = 0;
  for (const uint32_t boundary : boundaries) {
    for (const ObjectId& id : NeededObjects(layout, boundary)) {
      const bool is_new = id.tokens == layout.chunk_tokens && chunks.insert(id).second;
      bytes += is_new ? layout.ObjectBytes(id.tokens, id.group) : 0;
    }
  }
  const absl::Time deadline = absl::Now() + kHang;
  while ((*worker)->Stats().kv_used_bytes != bytes && absl::Now() < deadline) {
    std::this_thread::yield();
  }
  return (*worker)->Stats().kv_used_bytes;
}

}  // namespace hearth
