// History: which segments were removed from the store, when and why, so that Explain can give the
// reason for a miss. It has one entry for each segment key, including the keys of restore points.
// Limited in entries. Not thread safe: the store's lock guards it.
#ifndef HEARTH_CACHE_STORE_CATALOG_HISTORY_H_
#define HEARTH_CACHE_STORE_CATALOG_HISTORY_H_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "cache_store/base/removal.h"
#include "proto/fingerprint.h"

namespace hearth {

struct Departure {
  Removal why = Removal::kDropped;
  absl::Time when;
};

class History {
 public:
  // Limit of entries: about 130 bytes each, 8 MiB. A prompt of 32,768 tokens has 256 segments if
  // chunks have 128 tokens.
  static constexpr size_t kMaxEntries = 65536;

  void Record(const Digest& key, Removal why, absl::Time when) {
    entries_[key] = Entry{Departure{why, when}, ++serial_};
    order_.emplace_back(key, serial_);
    while (entries_.size() > kMaxEntries || order_.size() > 2 * kMaxEntries) ForgetOldest();
    assert(entries_.size() <= order_.size());
  }
  // Returns the latest removal of the key; null if none is recorded.
  const Departure* Find(const Digest& key) const {
    const auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : &it->second.departure;
  }

 private:
  struct Entry {
    Departure departure;
    uint64_t serial = 0;  // number of the key's latest record; a key may be removed repeatedly
  };
  void ForgetOldest() {
    const auto [key, serial] = order_.front();
    order_.pop_front();
    const auto it = entries_.find(key);
    if (it == entries_.end() || it->second.serial != serial) return;
    entries_.erase(it);
  }

  absl::flat_hash_map<Digest, Entry> entries_;
  std::deque<std::pair<Digest, uint64_t>> order_;
  uint64_t serial_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_HISTORY_H_
