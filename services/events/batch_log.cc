#include "services/events/batch_log.h"

#include <algorithm>
#include <utility>

namespace hearth {

void BatchLog::Append(std::string payload) {
  bytes_ += payload.size();
  ++with_events_;
  batches_.push_back({{next_++, std::make_shared<const std::string>(std::move(payload))}});
  while (batches_.size() > 1 && (with_events_ > max_batches_ || bytes_ > max_bytes_)) {
    const Kept& oldest = batches_.front();
    if (!oldest.is_empty) {
      bytes_ -= oldest.batch.payload->size();
      --with_events_;
    }
    batches_.pop_front();
  }
}

void BatchLog::AppendEmpty(size_t count, std::string payload) {
  const auto shared = std::make_shared<const std::string>(std::move(payload));
  for (size_t i = 0; i < count; ++i) batches_.push_back({{next_++, shared}, true});
}

std::vector<KvBatch> BatchLog::From(uint64_t number, size_t most) const {
  if (number >= next_) return {};
  const size_t begin = number <= first() ? 0 : number - first();
  const size_t end = begin + std::min(most, batches_.size() - begin);
  std::vector<KvBatch> batches;
  batches.reserve(end - begin);
  for (size_t i = begin; i < end; ++i) batches.push_back(batches_[i].batch);
  return batches;
}

}  // namespace hearth
