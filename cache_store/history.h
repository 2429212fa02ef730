// Why restore points left: a bounded memory, so that Explain can say more than "not there".
// Not thread safe: the store guards it.
#ifndef HEARTH_CACHE_STORE_HISTORY_H_
#define HEARTH_CACHE_STORE_HISTORY_H_

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "proto/fingerprint.h"

namespace hearth {

struct Departure {
  std::string reason;  // "evicted", "dropped", "quarantined"
  absl::Time when;
};

class History {
 public:
  // About 150 bytes each: 1.2 MiB.
  static constexpr size_t kMaxEntries = 8192;

  void Record(const Digest& key, std::string reason, absl::Time when) {
    if (entries_.insert_or_assign(key, Departure{std::move(reason), when}).second) {
      order_.push_back(key);
    }
    if (order_.size() > kMaxEntries) {
      entries_.erase(order_.front());
      order_.pop_front();
    }
  }
  // Null when unknown.
  const Departure* Find(const Digest& key) const {
    const auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : &it->second;
  }

 private:
  absl::flat_hash_map<Digest, Departure> entries_;
  std::deque<Digest> order_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_HISTORY_H_
