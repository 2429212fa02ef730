#include "cache_store/disk/promises/promises.h"

#include <algorithm>
#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "proto/byte_codec.h"
#include "proto/kv_layout.h"

namespace hearth {
namespace {

constexpr size_t kCheckedBytes = kPromiseBytes - 8;
constexpr uint32_t kErasedTokens = 1;
constexpr absl::string_view kMagic = "hearth promises";

Digest IdOf(absl::string_view text) {
  Digest id{};
  std::copy(text.begin(), text.end(), id.begin());
  return id;
}

// In the order of the file.
class Reading {
 public:
  PromiseBook Read(absl::string_view bytes) {
    book_.bytes = bytes.size();
    const uint64_t whole = bytes.size() - bytes.size() % kPromiseBytes;
    book_.torn_bytes = bytes.size() - whole;
    for (uint64_t at = 0; at < whole; at += kPromiseBytes) {
      const absl::string_view piece = bytes.substr(at, kPromiseBytes);
      if (const std::optional<PromiseEntry> entry = ParsePromise(piece)) {
        ++book_.entries;
        Take(*entry, at);
      } else if (piece.find_first_not_of('\0') != absl::string_view::npos) {
        ++book_.damaged;
      }
    }
    for (auto& [number, promise] : book_.promises) {
      if (promise.level == PromiseLevel::kDisk && kept_at_[number] < synced_bytes_) {
        promise.level = PromiseLevel::kSync;
      }
    }
    TakeRecentlyErased();
    return std::move(book_);
  }

 private:
  void Take(const PromiseEntry& entry, uint64_t at) {
    switch (entry.kind) {
      case PromiseKind::kHeader:
        book_.has_header |= at == 0 && entry.id == IdOf(kMagic);
        return;
      case PromiseKind::kSession:
        std::copy_n(entry.id.begin(), book_.boot.size(), book_.boot.begin());
        return;
      case PromiseKind::kSynced:
        synced_bytes_ = std::max(synced_bytes_, std::min(entry.number, at));
        return;
      case PromiseKind::kClosed:
        return;
      case PromiseKind::kForgot:
        book_.forgot_to = entry.number;
        book_.unsaid = entry.level == PromiseLevel::kNone ? 0 : entry.tokens;
        if (entry.number != kForgotAll) {
          book_.last_number = std::max(book_.last_number, entry.number);
        }
        return;
      case PromiseKind::kIntended:
      case PromiseKind::kKept:
      case PromiseKind::kReleased:
        book_.last_number = std::max(book_.last_number, entry.number);
        break;
    }
    if (entry.kind == PromiseKind::kReleased) return Release(entry);
    const bool is_intent = entry.kind == PromiseKind::kIntended;
    book_.lost.erase(entry.number);
    book_.gone.erase(entry.number);
    book_.erased.erase(entry.number);
    if (!is_intent) GiveUpLost(entry.id);
    Promise& promise = book_.promises[entry.number];
    const PromiseLevel level = is_intent ? PromiseLevel::kIntended : entry.level;
    // Written again it is promised no less than before.
    if (level < promise.level) return;
    promise = {entry.number, entry.id, entry.tokens, level, book_.boot, entry.unix_s, at};
    kept_at_[entry.number] = at;
  }

  void Release(const PromiseEntry& entry) {
    Promise promise{entry.number, entry.id, entry.tokens, entry.level, book_.boot, entry.unix_s};
    const auto it = book_.promises.find(entry.number);
    if (it != book_.promises.end()) {
      promise = it->second;
      book_.promises.erase(it);
    }
    book_.lost.erase(entry.number);
    if (entry.level == PromiseLevel::kNone) {
      book_.gone.insert(entry.number);
      if (entry.tokens == kErasedTokens) {
        book_.erased.insert(entry.number);
        erased_.push_back(entry.number);
      }
      return;
    }
    lost_by_id_[promise.id] = entry.number;
    book_.lost[entry.number] = promise;
  }

  // The restore point is published again, and lives and leaves under its new number.
  void GiveUpLost(const Digest& id) {
    const auto it = lost_by_id_.find(id);
    if (it == lost_by_id_.end()) return;
    if (book_.lost.erase(it->second) > 0) book_.gone.insert(it->second);
    lost_by_id_.erase(it);
  }

  // Of one that was erased more than once the last time counts.
  void TakeRecentlyErased() {
    absl::flat_hash_set<uint64_t> seen;
    std::vector<uint64_t>& recent = book_.recently_erased;
    for (auto it = erased_.rbegin(); it != erased_.rend() && recent.size() < kMaxRecentlyErased;
         ++it) {
      if (book_.erased.contains(*it) && seen.insert(*it).second) recent.push_back(*it);
    }
    std::reverse(recent.begin(), recent.end());
  }

  PromiseBook book_;
  std::vector<uint64_t> erased_;  // in order
  absl::btree_map<uint64_t, uint64_t> kept_at_;
  absl::flat_hash_map<Digest, uint64_t> lost_by_id_;
  uint64_t synced_bytes_ = 0;
};

PromiseEntry EntryOf(const Promise& promise) {
  const bool is_intent = promise.level == PromiseLevel::kIntended;
  return {is_intent ? PromiseKind::kIntended : PromiseKind::kKept,
          is_intent ? PromiseLevel::kNone : promise.level,
          promise.tokens,
          promise.manifest,
          promise.id,
          promise.unix_s};
}

PromiseEntry ForgotEntry(const PromiseBook& book) {
  const auto unsaid = static_cast<uint32_t>(std::min<uint64_t>(book.unsaid, ~uint32_t{0}));
  const PromiseLevel level = unsaid > 0 ? PromiseLevel::kDisk : PromiseLevel::kNone;
  return {PromiseKind::kForgot, level, unsaid, book.forgot_to, {}, 0};
}

}  // namespace

uint64_t PromiseBook::LiveEntries() const {
  const auto is_kept = [this](uint64_t number) { return number <= forgot_to; };
  return promises.size() + lost.size() + recently_erased.size() +
         static_cast<uint64_t>(std::count_if(gone.begin(), gone.end(), is_kept));
}

std::string SerializePromise(const PromiseEntry& entry) {
  std::string bytes;
  AppendU32(&bytes, static_cast<uint32_t>(entry.kind) | static_cast<uint32_t>(entry.level) << 8);
  AppendU32(&bytes, entry.tokens);
  AppendU64(&bytes, entry.number);
  bytes.append(reinterpret_cast<const char*>(entry.id.data()), entry.id.size());
  AppendU64(&bytes, entry.unix_s);
  AppendU64(&bytes, SliceDigest(bytes.data(), bytes.size()));
  return bytes;
}

std::optional<PromiseEntry> ParsePromise(absl::string_view bytes) {
  if (bytes.size() != kPromiseBytes ||
      LoadU64(bytes.substr(kCheckedBytes)) != SliceDigest(bytes.data(), kCheckedBytes)) {
    return std::nullopt;
  }
  const auto kind = static_cast<uint8_t>(bytes[0]), level = static_cast<uint8_t>(bytes[1]);
  if (kind < static_cast<uint8_t>(PromiseKind::kHeader) ||
      kind > static_cast<uint8_t>(PromiseKind::kForgot) ||
      level > static_cast<uint8_t>(PromiseLevel::kSync)) {
    return std::nullopt;
  }
  PromiseEntry entry;
  entry.kind = static_cast<PromiseKind>(kind);
  entry.level = static_cast<PromiseLevel>(level);
  ByteReader reader(bytes.substr(4));
  entry.tokens = reader.U32("tokens").value();
  entry.number = reader.U64("number").value();
  std::memcpy(entry.id.data(), reader.Bytes(entry.id.size(), "id").value().data(), entry.id.size());
  entry.unix_s = reader.U64("time").value();
  return entry;
}

PromiseEntry ErasedEntry(uint64_t number, uint64_t unix_s) {
  return {PromiseKind::kReleased, PromiseLevel::kNone, kErasedTokens, number, {}, unix_s};
}

PromiseEntry PromisesHeader() {
  return {PromiseKind::kHeader, PromiseLevel::kNone, 0, kPromisesVersion, IdOf(kMagic), 0};
}

PromiseEntry PromisesSession(const BootId& boot, uint64_t unix_s) {
  Digest id{};
  std::copy(boot.begin(), boot.end(), id.begin());
  return {PromiseKind::kSession, PromiseLevel::kNone, 0, 0, id, unix_s};
}

PromiseBook ReadPromises(absl::string_view bytes) { return Reading().Read(bytes); }

std::string WritePromises(const PromiseBook& book) {
  std::string bytes = SerializePromise(PromisesHeader());
  if (book.forgot_to > 0 || book.unsaid > 0) bytes += SerializePromise(ForgotEntry(book));
  for (const uint64_t number : book.gone) {
    if (number > book.forgot_to || book.erased.contains(number)) continue;
    bytes += SerializePromise({PromiseKind::kReleased, PromiseLevel::kNone, 0, number, {}, 0});
  }
  for (const uint64_t number : book.recently_erased)
    bytes += SerializePromise(ErasedEntry(number, 0));
  // By the boot they were made under: a session's entry says it for all that follow.
  std::optional<BootId> boot;
  const auto begin_session = [&](const BootId& of, uint64_t unix_s) {
    if (boot != of) bytes += SerializePromise(PromisesSession(of, unix_s));
    boot = of;
  };
  for (const auto& [number, promise] : book.promises) {
    begin_session(promise.boot, promise.unix_s);
    bytes += SerializePromise(EntryOf(promise));
  }
  for (const auto& [number, promise] : book.lost) {
    PromiseEntry entry = EntryOf(promise);
    entry.kind = PromiseKind::kReleased;
    entry.level = promise.level;
    bytes += SerializePromise(entry);
  }
  begin_session(book.boot, 0);
  return bytes;
}

}  // namespace hearth
