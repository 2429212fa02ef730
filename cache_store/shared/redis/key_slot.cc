#include "cache_store/shared/redis/key_slot.h"

#include <array>

namespace hearth {
namespace {

// CRC-16/XMODEM: polynomial 0x1021, high bit first, from zero.
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

}  // namespace hearth
