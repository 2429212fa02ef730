#include "services/serving/http/body_bytes.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hearth {

size_t BodyBytes::CapacityFor(size_t bytes, size_t most) {
  if (bytes > kBlockBytes) return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  return std::min(std::max(bytes, most), kBlockBytes);
}

void BodyBytes::Reserve(size_t capacity) {
  capacity = std::min(capacity, kBlockBytes);
  if (capacity <= first_.capacity()) return;
  std::string grown;  // growing first_ in place would at least double its capacity
  grown.reserve(capacity);
  first_.swap(grown.append(first_));
}

void BodyBytes::Append(absl::string_view bytes) {
  const size_t to_first =
      std::min(bytes.size(), kBlockBytes - std::min(kBlockBytes, first_.size()));
  first_.append(bytes.data(), to_first);
  bytes.remove_prefix(to_first);
  while (!bytes.empty()) {
    const size_t used = rest_bytes_ % kBlockBytes;
    if (used == 0) rest_.push_back(std::unique_ptr<char[]>(new char[kBlockBytes]));
    const size_t count = std::min(bytes.size(), kBlockBytes - used);
    std::memcpy(rest_.back().get() + used, bytes.data(), count);
    rest_bytes_ += count;
    bytes.remove_prefix(count);
  }
}

void BodyBytes::Join() {
  if (rest_.empty()) return;
  std::string all;
  all.reserve(size());
  all.append(std::exchange(first_, {}));
  for (std::unique_ptr<char[]>& block : rest_) {
    const size_t count = std::min(rest_bytes_, kBlockBytes);
    all.append(block.get(), count);
    rest_bytes_ -= count;
    block.reset();
  }
  rest_.clear();
  first_ = std::move(all);
}

}  // namespace hearth
