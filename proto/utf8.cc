#include "proto/utf8.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <iterator>

namespace hearth {
namespace {

// the replacement character U+FFFD in UTF-8
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr size_t kMaxCharBytes = 4;

struct Scan {
  enum Kind { kWhole, kIncomplete, kInvalid } kind;
  size_t length;  // number of bytes of the character, if kWhole
};

// For a lead byte: the length of the character, and the allowed range of its second byte. This
// range excludes overlong forms, surrogates and values above U+10FFFF.
struct LeadRule {
  size_t length;
  uint8_t second_min, second_max;
};

LeadRule RuleFor(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead >= 0xC2 && lead <= 0xDF) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead >= 0xE1 && lead <= 0xEF) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead >= 0xF1 && lead <= 0xF3) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

Scan ScanChar(std::string_view text) {
  assert(!text.empty());
  const LeadRule rule = RuleFor(static_cast<uint8_t>(text[0]));
  if (rule.length == 0) return {Scan::kInvalid, 0};
  const size_t have = std::min(rule.length, text.size());
  for (size_t i = 1; i < have; ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? rule.second_min : 0x80;
    const uint8_t high = i == 1 ? rule.second_max : 0xBF;
    if (byte < low || byte > high) return {Scan::kInvalid, 0};
  }
  return have == rule.length ? Scan{Scan::kWhole, have} : Scan{Scan::kIncomplete, 0};
}

// Returns whether Python's str.isspace() is true for this character.
bool IsPythonSpace(char32_t c) {
  if (c <= 0x20) return c == 0x20 || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  static constexpr char32_t kOthers[] = {0x85,   0xA0,   0x1680, 0x2028,
                                         0x2029, 0x202F, 0x205F, 0x3000};
  return (c >= 0x2000 && c <= 0x200A) ||
         std::find(std::begin(kOthers), std::end(kOthers), c) != std::end(kOthers);
}

}  // namespace

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Scan scan = ScanChar(text.substr(at));
    if (scan.kind != Scan::kWhole) return at;
    at += scan.length;
  }
  return std::nullopt;
}

bool IsUtf8Boundary(std::string_view text, size_t offset) {
  assert(offset <= text.size());
  return offset == text.size() || (static_cast<uint8_t>(text[offset]) & 0xC0) != 0x80;
}

std::string_view StripLeadingWhitespace(std::string_view text) {
  while (!text.empty()) {
    assert(ScanChar(text).kind == Scan::kWhole);
    const Character first = CharacterAt(text, 0);
    if (!IsPythonSpace(first.code)) break;
    text.remove_prefix(first.bytes);
  }
  return text;
}

std::string_view StripWhitespace(std::string_view text) {
  text = StripLeadingWhitespace(text);
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && !IsUtf8Boundary(text, start)) --start;
    assert(ScanChar(text.substr(start)).kind == Scan::kWhole);
    if (!IsPythonSpace(CharacterAt(text, start).code)) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

void Utf8Repairer::Append(std::string_view bytes, std::string* out) {
  pending_.append(bytes);
  size_t at = 0;
  while (at < pending_.size()) {
    const Scan scan = ScanChar(std::string_view(pending_).substr(at));
    if (scan.kind == Scan::kIncomplete) break;
    if (scan.kind == Scan::kWhole) {
      out->append(pending_, at, scan.length);
      at += scan.length;
    } else {
      out->append(kReplacement);
      ++at;
    }
  }
  pending_.erase(0, at);
  assert(pending_.size() < kMaxCharBytes);
}

void Utf8Repairer::Finish(std::string* out) {
  for (size_t i = 0; i < pending_.size(); ++i) out->append(kReplacement);
  pending_.clear();
}

}  // namespace hearth
