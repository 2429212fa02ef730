#include "cache_store/shared/redis/text_pool.h"

#include <utility>

namespace hearth {
namespace {

// Shorter ones are malloc's matter, which keeps them itself.
constexpr size_t kShortestBytes = size_t{16} << 10;

}  // namespace

std::string TextPool::Take(size_t bytes) {
  std::string text;
  {
    absl::MutexLock lock(&mutex_);
    // The last one given is the one that a cache still has. One much longer than it need be would
    // hold memory that nobody counts.
    for (size_t i = texts_.size(); i-- > 0;) {
      const size_t capacity = texts_[i].capacity();
      if (capacity < bytes || capacity / 2 > bytes) continue;
      text = std::move(texts_[i]);
      texts_.erase(texts_.begin() + static_cast<ptrdiff_t>(i));
      kept_bytes_ -= capacity;
      break;
    }
  }
  text.resize(bytes);
  return text;
}

void TextPool::Give(std::string text) {
  const size_t capacity = text.capacity();
  if (capacity < kShortestBytes) return;
  absl::MutexLock lock(&mutex_);
  if (capacity > kKeptBytes) return;
  // The oldest make room: sizes that nobody asks for any more would keep the others out.
  size_t oldest = 0;
  for (; kept_bytes_ + capacity > kKeptBytes; ++oldest) kept_bytes_ -= texts_[oldest].capacity();
  texts_.erase(texts_.begin(), texts_.begin() + static_cast<ptrdiff_t>(oldest));
  kept_bytes_ += capacity;
  texts_.push_back(std::move(text));
}

size_t TextPool::kept_bytes() const {
  absl::MutexLock lock(&mutex_);
  return kept_bytes_;
}

}  // namespace hearth
