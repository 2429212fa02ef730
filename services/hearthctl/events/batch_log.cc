#include "services/hearthctl/events/batch_log.h"

#include <algorithm>
#include <utility>

namespace hearth {

void BatchLog::Append(std::string payload) {
  bytes_ += payload.size();
  batches_.push_back({next_++, std::make_shared<const std::string>(std::move(payload))});
  while (batches_.size() > 1 && (batches_.size() > max_batches_ || bytes_ > max_bytes_)) {
    bytes_ -= batches_.front().payload->size();
    batches_.pop_front();
  }
}

std::vector<KvBatch> BatchLog::From(uint64_t number, size_t most) const {
  if (number >= next_) return {};
  const size_t begin = number <= first() ? 0 : number - first();
  const size_t end = begin + std::min(most, batches_.size() - begin);
  return {batches_.begin() + static_cast<ptrdiff_t>(begin),
          batches_.begin() + static_cast<ptrdiff_t>(end)};
}

}  // namespace hearth
