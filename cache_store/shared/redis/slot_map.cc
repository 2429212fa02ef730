#include "cache_store/shared/redis/slot_map.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

using Kind = RedisReply::Kind;

constexpr size_t kPrimariesMax = 1000;

absl::Status NoMap(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("invalid reply to CLUSTER SLOTS: ", why));
}

// Parses a node of a CLUSTER SLOTS reply: [host or nil, port, id, ...]. A nil or empty host means
// the host of `teller`, the node that sent the reply.
absl::StatusOr<NodeAddress> NodeOf(const RedisReply& node, const NodeAddress& teller) {
  if (node.kind != Kind::kArray || node.elements.size() < 2)
    return NoMap("the entry of a node is not a list");
  const RedisReply& host = node.elements[0];
  const RedisReply& port = node.elements[1];
  const bool has_host = host.kind == Kind::kText && !host.text.empty();
  if (!has_host && host.kind != Kind::kNil && host.kind != Kind::kText) {
    return NoMap("the host of a node is not a string");
  }
  if (has_host && !IsHostName(host.text))
    return NoMap("the host name of a node has invalid characters");
  if (port.kind != Kind::kInteger || port.integer < 1 || port.integer > UINT16_MAX) {
    return NoMap("the port of a node is not a port number");
  }
  return NodeAddress{has_host ? host.text : teller.host, static_cast<uint16_t>(port.integer)};
}

// Makes the table of CRC-16/XMODEM: polynomial 0x1021, high bit first, initial value 0.
constexpr std::array<uint16_t, 256> MakeTable() {
  std::array<uint16_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t rest = byte << 8;
    for (int bit = 0; bit < 8; ++bit) rest = (rest << 1) ^ ((rest & 0x8000) != 0 ? 0x1021 : 0);
    table[byte] = static_cast<uint16_t>(rest);
  }
  return table;
}

constexpr std::array<uint16_t, 256> kTable = MakeTable();

}  // namespace

uint16_t KeySlot(absl::string_view key) {
  const size_t open = key.find('{');
  if (open != absl::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != absl::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  uint16_t sum = 0;
  for (const char c : key) {
    sum = static_cast<uint16_t>(sum << 8) ^ kTable[(sum >> 8) ^ static_cast<uint8_t>(c)];
  }
  return sum % kHashSlots;
}

SlotMap::SlotMap() : owners_(kHashSlots, kNoOwner) {}

SlotMap SlotMap::Single(const NodeAddress& node) {
  SlotMap map;
  map.primaries_ = {node};
  std::fill(map.owners_.begin(), map.owners_.end(), uint16_t{0});
  return map;
}

absl::StatusOr<SlotMap> SlotMap::FromReply(const RedisReply& reply, const NodeAddress& teller) {
  if (reply.kind != Kind::kArray || reply.elements.empty())
    return NoMap("the reply is not a list of hash slot ranges");
  SlotMap map;
  for (const RedisReply& range : reply.elements) {
    if (range.kind != Kind::kArray || range.elements.size() < 3)
      return NoMap("a hash slot range is not a list");
    const RedisReply& first = range.elements[0];
    const RedisReply& last = range.elements[1];
    if (first.kind != Kind::kInteger || last.kind != Kind::kInteger || first.integer < 0 ||
        last.integer < first.integer || last.integer >= int64_t{kHashSlots}) {
      return NoMap("a hash slot range has invalid slot numbers");
    }
    // The first node of a range is its primary; the others are replicas.
    absl::StatusOr<NodeAddress> node = NodeOf(range.elements[2], teller);
    if (!node.ok()) return std::move(node).status();
    const std::optional<uint16_t> number = map.NumberOf(*node);
    if (!number.has_value()) return NoMap("the cluster has too many primaries");
    std::fill(map.owners_.begin() + first.integer, map.owners_.begin() + last.integer + 1, *number);
  }
  return map;
}

std::optional<uint16_t> SlotMap::NumberOf(const NodeAddress& node) {
  const auto it = std::find(primaries_.begin(), primaries_.end(), node);
  if (it != primaries_.end()) return static_cast<uint16_t>(it - primaries_.begin());
  if (primaries_.size() >= kPrimariesMax) return std::nullopt;
  primaries_.push_back(node);
  return static_cast<uint16_t>(primaries_.size() - 1);
}

const NodeAddress* SlotMap::Owner(uint16_t slot) const {
  const uint16_t owner = owners_[slot];
  return owner == kNoOwner ? nullptr : &primaries_[owner];
}

void SlotMap::Assign(uint16_t slot, const NodeAddress& node) {
  const std::optional<uint16_t> number = NumberOf(node);
  if (number.has_value()) owners_[slot] = *number;
}

}  // namespace hearth
