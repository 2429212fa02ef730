#include "services/events/kv_batch.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "nlohmann/json.hpp"

namespace hearth {
namespace {

using Value = nlohmann::json;

constexpr int kRank = 0;  // of a worker among those that share a model's data; ours do not

Value TextOrNull(const std::string& text) { return text.empty() ? Value() : Value(text); }

std::string Payload(double seconds, Value events) {
  std::string payload;
  Value::to_msgpack(Value::array({seconds, std::move(events), kRank}), payload);
  return payload;
}

double SecondsOf(absl::Time now) { return absl::ToDoubleSeconds(now - absl::UnixEpoch()); }

// Collects events into payloads.
class BatchWriter {
 public:
  BatchWriter(const KvLabels& labels, absl::Time now)
      : medium_(TextOrNull(labels.medium)),
        lora_name_(TextOrNull(labels.lora_name)),
        seconds_(SecondsOf(now)) {}

  void operator()(const AllBlocksCleared& /*event*/) { Add(Value::array({"AllBlocksCleared"}), 0); }
  void operator()(const BlocksStored& event) {
    const size_t block_tokens = event.block_tokens;
    assert(block_tokens > 0 && event.token_ids.size() == event.ids.size() * block_tokens);
    const size_t most = std::max<size_t>(1, kMaxBatchTokens / block_tokens);
    uint64_t parent = event.parent_id;
    for (size_t begin = 0; begin < event.ids.size();) {
      const size_t end = std::min(begin + most, event.ids.size());
      Value tokens = Value::array();
      for (size_t i = begin * block_tokens; i < end * block_tokens; ++i) {
        tokens.push_back(event.token_ids[i]);
      }
      const Value no_lora_number;
      Add(Value::array({"BlockStored", Ids(event.ids, begin, end),
                        parent == 0 ? Value() : Value(parent), std::move(tokens), block_tokens,
                        no_lora_number, medium_, lora_name_}),
          (end - begin) * block_tokens);
      parent = event.ids[end - 1];
      begin = end;
    }
  }
  void operator()(const BlocksRemoved& event) {
    constexpr size_t kTokensEach = kMaxBatchTokens / kMaxBatchRemovals;
    for (size_t begin = 0; begin < event.ids.size(); begin += kMaxBatchRemovals) {
      const size_t end = std::min(begin + kMaxBatchRemovals, event.ids.size());
      Add(Value::array({"BlockRemoved", Ids(event.ids, begin, end), medium_}),
          (end - begin) * kTokensEach);
    }
  }

  std::vector<std::string> Take() {
    Finish();
    return std::move(payloads_);
  }

 private:
  static Value Ids(const std::vector<uint64_t>& ids, size_t begin, size_t end) {
    Value list = Value::array();
    for (size_t i = begin; i < end; ++i) list.push_back(ids[i]);
    return list;
  }

  // `size`: in tokens.
  void Add(Value event, size_t size) {
    if (!events_.empty() && size_ + size > kMaxBatchTokens) Finish();
    events_.push_back(std::move(event));
    size_ += size;
  }
  void Finish() {
    if (events_.empty()) return;
    payloads_.push_back(Payload(seconds_, std::move(events_)));
    events_ = Value::array();
    size_ = 0;
  }

  const Value medium_, lora_name_;
  const double seconds_;
  Value events_ = Value::array();
  size_t size_ = 0;
  std::vector<std::string> payloads_;
};

}  // namespace

std::vector<std::string> EncodeBatches(const std::vector<KvEvent>& events, const KvLabels& labels,
                                       absl::Time now) {
  BatchWriter writer(labels, now);
  for (const KvEvent& event : events) std::visit(writer, event);
  return writer.Take();
}

std::string EncodeEmptyBatch(absl::Time now) { return Payload(SecondsOf(now), Value::array()); }

}  // namespace hearth
