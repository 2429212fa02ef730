// A replacement for the model's forward pass, linked instead of hearth_model. It computes hashes
// instead of products.
//
// The key and value row of a token is a hash of the token, its position, the ends of the prefill
// steps, and the bytes of all rows that the layer can see; the logits are a hash of everything. So
// one wrong, missing or stale bit in a restored prefix changes the logits. The code asserts errors
// that real tensors would hide: rows that are read but were never written, and rows that are kept
// although they left the window. It needs no torch, so sanitizers can check the engine.

#include "tests/support/hash_gemma.h"

#include <cassert>
#include <cstring>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/model/torch/gemma.h"
#include "worker/model/torch/kv_cache.h"

namespace hearth {
namespace {

uint64_t Mix(uint64_t state, uint64_t value) {
  state = (state ^ value) + 0x9e3779b97f4a7c15u;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return state ^ (state >> 31);
}

using Row = std::vector<std::byte>;  // shape: [K,V][kv_head][head_dim]

}  // namespace

struct KvCacheRep {
  const ModelConfig* config;
  int capacity = 0, length = 0;
  size_t head_row_bytes = 0;  // bytes of one KV head's key or value; a row has 2 * kv_heads of them
  std::vector<std::map<int, Row>> layers;  // for each layer: the rows, by position
  std::vector<int> first_held;

  int Tail(int at) const { return std::max(0, at - (config->attention.sliding_window - 1)); }
  size_t runs() const { return size_t{2} * config->attention.num_kv_heads; }
};

KvCache::KvCache(std::unique_ptr<KvCacheRep> rep) : rep_(std::move(rep)) {}
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;
int KvCache::length() const { return rep_->length; }
int KvCache::capacity() const { return rep_->capacity; }
int KvCache::num_layers() const { return static_cast<int>(rep_->layers.size()); }
int64_t KvCache::token_bytes() const { return rep_->runs() * rep_->head_row_bytes; }
int KvCache::first_held(int layer) const { return rep_->first_held[layer]; }

void KvCache::CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
                      std::byte* slice) const {
  assert(begin >= first_held(layer) && end <= length());
  assert(slice_begin <= begin && end <= slice_begin + slice_tokens);
  const size_t bytes = rep_->head_row_bytes;
  for (int at = begin; at < end; ++at) {
    const Row& row = rep_->layers[layer].at(at);
    for (size_t run = 0; run < rep_->runs(); ++run) {
      std::memcpy(slice + (run * slice_tokens + (at - slice_begin)) * bytes,
                  row.data() + run * bytes, bytes);
    }
  }
}

void KvCache::BeginRestore(int length) {
  Reset();
  rep_->length = length;
  for (int layer = 0; layer < num_layers(); ++layer) {
    rep_->first_held[layer] = rep_->config->is_local(layer) ? rep_->Tail(length) : 0;
  }
}

void KvCache::CopyIn(int layer, int begin, int end, int slice_begin, int slice_tokens,
                     const std::byte* slice, bool /*on_device*/) {
  assert(begin >= first_held(layer) && begin <= end && end <= length());
  assert(slice_begin <= begin && end <= slice_begin + slice_tokens);
  const size_t bytes = rep_->head_row_bytes;
  for (int at = begin; at < end; ++at) {
    Row& row = rep_->layers[layer][at];
    row.resize(rep_->runs() * bytes);
    for (size_t run = 0; run < rep_->runs(); ++run) {
      std::memcpy(row.data() + run * bytes,
                  slice + (run * slice_tokens + (at - slice_begin)) * bytes, bytes);
    }
  }
}

void KvCache::FinishRestore(int length) {
  assert(length == rep_->length);
  for (int layer = 0; layer < num_layers(); ++layer) {
    assert(static_cast<int>(rep_->layers[layer].size()) == length - first_held(layer));
  }
}

void KvCache::AwaitCopies() {}

void KvCache::Reset() {
  rep_->length = 0;
  for (auto& rows : rep_->layers) rows.clear();
  for (int& first : rep_->first_held) first = 0;
}

namespace {

struct Machine {
  OddBits odd = OddBits::kNowhere;
  std::string cpu_capability = "hash";
};
Machine& TheMachine() {
  static auto* machine = new Machine;
  return *machine;
}

}  // namespace

OddMachine::OddMachine(OddBits bits, std::string cpu_capability) {
  TheMachine() = {bits, std::move(cpu_capability)};
}
OddMachine::~OddMachine() { TheMachine() = Machine(); }

namespace {
uint64_t cache_bytes_limit = 0;
bool cache_limit_throws = false;
}  // namespace

void LimitCacheBytes(uint64_t bytes, bool throws) {
  cache_bytes_limit = bytes;
  cache_limit_throws = throws;
}

struct Gemma::Rep {
  ModelConfig config;
  OddBits odd = TheMachine().odd;
  std::string device_kind = "cpu", compute_version = "hash 1";
  std::string cpu_capability = TheMachine().cpu_capability;
  Digest weights_digest{};
  std::vector<std::string> notes;
};

Gemma::Gemma(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Gemma::~Gemma() = default;
const ModelConfig& Gemma::config() const { return rep_->config; }
KvDtype Gemma::kv_dtype() const { return KvDtype::kFloat32; }
int64_t Gemma::kv_token_bytes() const {
  return int64_t{2} * config().attention.num_kv_heads * config().attention.head_dim * sizeof(float);
}
const std::string& Gemma::device_kind() const { return rep_->device_kind; }
const std::string& Gemma::compute_version() const { return rep_->compute_version; }
const std::string& Gemma::cpu_capability() const { return rep_->cpu_capability; }
int Gemma::threads() const { return 1; }
const Digest& Gemma::weights_digest() const { return rep_->weights_digest; }
const std::vector<std::string>& Gemma::notes() const { return rep_->notes; }

absl::StatusOr<std::unique_ptr<Gemma>> Gemma::Load(const std::string& model_dir,
                                                   const GemmaOptions&) {
  absl::StatusOr<ModelConfig> config = LoadModelConfig(model_dir);
  if (!config.ok()) return config.status();
  auto rep = std::make_unique<Rep>();
  rep->config = *std::move(config);
  return std::unique_ptr<Gemma>(new Gemma(std::move(rep)));
}

uint64_t Gemma::KvCacheBytes(int capacity_tokens) const {
  return static_cast<uint64_t>(config().num_layers) * capacity_tokens * kv_token_bytes();
}

absl::StatusOr<uint64_t> Gemma::FreeDeviceBytes() const {
  return absl::FailedPreconditionError("hashing needs no device");
}

absl::StatusOr<KvCache> Gemma::NewKvCache(int capacity_tokens) const {
  if (cache_bytes_limit > 0 && KvCacheBytes(capacity_tokens) > cache_bytes_limit) {
    if (cache_limit_throws) throw std::bad_alloc();
    return absl::ResourceExhaustedError("the device has no memory");
  }
  auto rep = std::make_unique<KvCacheRep>();
  rep->config = &rep_->config;
  rep->capacity = capacity_tokens;
  rep->head_row_bytes = config().attention.head_dim * sizeof(float);
  rep->layers.resize(config().num_layers);
  rep->first_held.resize(config().num_layers, 0);
  return KvCache(std::move(rep));
}

absl::Status Gemma::Step(KvCache* kv, absl::Span<const int32_t> tokens,
                         std::vector<float>* logits) const {
  KvCacheRep& rep = *kv->rep_;
  const int begin = rep.length, end = begin + static_cast<int>(tokens.size());
  assert(!tokens.empty() && end <= rep.capacity);
  uint64_t last = 0;
  const bool odd = (rep_->odd == OddBits::kOneRow && tokens.size() == 1) ||
                   (rep_->odd == OddBits::kSlidWindow && rep.Tail(end) > 0) ||
                   (rep_->odd == OddBits::kFarKeys && begin > 4096);
  for (int layer = 0; layer < config().num_layers; ++layer) {
    auto& rows = rep.layers[layer];
    if (config().is_local(layer)) {  // remove rows that were only visible to the previous step
      rows.erase(rows.begin(), rows.lower_bound(rep.Tail(begin)));
      rep.first_held[layer] = rep.Tail(begin);
    }
    for (int at = begin; at < end; ++at) {
      uint64_t state = Mix(Mix(Mix(layer, tokens[at - begin]), at), Mix(begin, end));
      if (odd) state = Mix(state, 1);
      for (int seen = config().is_local(layer) ? rep.Tail(at + 1) : 0; seen < at; ++seen) {
        const Row& row = rows.at(seen);
        for (size_t i = 0; i + 8 <= row.size(); i += 8) {
          uint64_t word;
          std::memcpy(&word, row.data() + i, 8);
          state = Mix(state, word);
        }
      }
      Row row(kv->token_bytes());
      for (size_t i = 0; i + 8 <= row.size(); i += 8) {
        const uint64_t word = Mix(state, i);
        std::memcpy(row.data() + i, &word, 8);
      }
      rows[at] = std::move(row);
      last = Mix(last, state);
    }
  }
  rep.length = end;
  if (logits != nullptr) {
    logits->resize(config().vocab_size);
    for (int i = 0; i < config().vocab_size; ++i) {
      (*logits)[i] = static_cast<float>(Mix(last, i) >> 40) * 0x1p-20F;
    }
  }
  return absl::OkStatus();
}

}  // namespace hearth
