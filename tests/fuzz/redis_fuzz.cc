// Fuzz target: data from a Redis server: replies, tables of hash slots, redirections.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "cache_store/shared/redis/redis_reply.h"
#include "cache_store/shared/redis/slot_map.h"
#include "tests/fuzz/fuzz_input.h"

namespace hearth {
namespace {

const NodeAddress kTeller = {"10.0.0.1", 7000};

uint64_t TextBytes(const RedisReply& reply) {
  uint64_t bytes = reply.text.size();
  for (const RedisReply& element : reply.elements) bytes += TextBytes(element);
  return bytes;
}

uint64_t Elements(const RedisReply& reply) {
  uint64_t count = reply.elements.size();
  for (const RedisReply& element : reply.elements) count += Elements(element);
  return count;
}

struct Read {
  std::vector<RedisReply> replies;
  bool fails = false;
};

// Copies the bytes that the reader accepts, from the first byte on.
void FeedReader(absl::string_view bytes, ReplyReader* reader) {
  const absl::Span<char> room = reader->Room();
  const size_t count = std::min(bytes.size(), room.size());
  if (count > 0) {
    std::copy_n(bytes.data(), count, room.data());
    reader->Filled(count);
  }
  reader->Feed(bytes.data() + count, bytes.size() - count);
}

Read ReadAll(absl::string_view bytes, size_t piece, const ReplyLimits& limits) {
  TextPool texts;
  ReplyReader reader(&texts);
  Read read;
  while (!bytes.empty()) {
    const size_t count = std::min(piece, bytes.size());
    FeedReader(bytes.substr(0, count), &reader);
    bytes.remove_prefix(count);
    while (reader.HasBytes()) {
      absl::StatusOr<std::optional<RedisReply>> next = reader.Next(limits);
      read.fails = !next.ok();
      if (read.fails) return read;
      if (!next->has_value()) break;
      read.replies.push_back(*std::move(*next));
    }
  }
  return read;
}

void TryReply(const RedisReply& reply, const ReplyLimits& limits) {
  Require(TextBytes(reply) <= std::max<uint64_t>(limits.text_bytes, 1024) &&
              Elements(reply) <= limits.elements,
          "an answer beyond its limits was accepted");
  if (const std::optional<NodeAddress> target = TargetOf(reply.text, kTeller); target.has_value()) {
    Require(IsHostName(target->host) && target->port > 0, "a redirection to no host");
  }
  Require(!StatusOfError(reply.text).ok(), "an error was none");
  const absl::StatusOr<SlotMap> map = SlotMap::FromReply(reply, kTeller);
  if (!map.ok()) return;
  for (uint32_t slot = 0; slot < kHashSlots; ++slot) {
    const NodeAddress* owner = map->Owner(static_cast<uint16_t>(slot));
    Require(owner == nullptr || (IsHostName(owner->host) && owner->port > 0), "a slot of no host");
  }
}

}  // namespace
}  // namespace hearth

// The first byte selects the limits; the second selects how the other bytes are divided into
// pieces.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const hearth::ReplyLimits limits =
      data[0] % 2 == 0 ? hearth::kSlotMapLimits : hearth::ReplyLimits{uint64_t{20000}, 0};
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const hearth::Read whole = hearth::ReadAll(bytes, bytes.size(), limits);
  const hearth::Read pieces = hearth::ReadAll(bytes, 1 + data[1], limits);
  hearth::Require(whole.fails == pieces.fails && whole.replies.size() == pieces.replies.size() &&
                      std::equal(whole.replies.begin(), whole.replies.end(), pieces.replies.begin(),
                                 [](const auto& a, const auto& b) { return a.text == b.text; }),
                  "what is read depends on how its bytes come");
  for (const hearth::RedisReply& reply : whole.replies) hearth::TryReply(reply, limits);
  return 0;
}
