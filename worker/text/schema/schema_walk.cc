#include "worker/text/schema/schema_walk.h"

#include <cassert>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/utf8.h"

namespace hearth {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Returns at most `most` bytes of `text`, whole characters only.
absl::string_view Head(absl::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && IsContinuation(text[most])) --most;
  return text.substr(0, most);
}

// Appends one step of a JSON pointer. `must_encode` returns whether a byte is written as %XX.
template <typename MustEncode>
void AppendStep(absl::string_view name, const MustEncode& must_encode, std::string* out) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  out->push_back('/');
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '~') {
      out->append("~0");
    } else if (c == '/') {
      out->append("~1");
    } else if (must_encode(c)) {
      out->push_back('%');
      out->push_back(kDigits[byte / 16]);
      out->push_back(kDigits[byte % 16]);
    } else {
      out->push_back(c);
    }
  }
}

// Calls `append(name)` for each step from the root to `place`.
template <typename Append>
void ForEachStep(const SchemaPlace& place, const Append& append) {
  std::vector<const SchemaPlace*> steps;
  for (const SchemaPlace* at = &place; at->above != nullptr; at = at->above) steps.push_back(at);
  while (!steps.empty()) {
    const SchemaPlace& at = *steps.back();
    steps.pop_back();
    append(at.keyword);
    if (at.step == SchemaPlace::Step::kElement) append(absl::StrCat(at.index));
    if (at.step == SchemaPlace::Step::kNamed) append(at.name);
  }
}

}  // namespace

std::string SchemaPlace::Text() const {
  // A space would look like the end of the place; other characters stay readable.
  const auto must_encode = [](char c) {
    return c == ' ' || c == '%' || absl::ascii_iscntrl(static_cast<unsigned char>(c));
  };
  std::string text = "#";
  ForEachStep(*this, [&](absl::string_view name) {
    const absl::string_view head = Head(name, kMaxPlaceNameBytes);
    AppendStep(head, must_encode, &text);
    if (head.size() < name.size()) text.append("...");
  });
  if (text.size() <= kMaxPlaceBytes) return text;
  constexpr size_t kHalf = kMaxPlaceBytes / 2 - 2;
  size_t end = text.size() - kHalf;
  while (end < text.size() && IsContinuation(text[end])) ++end;
  assert(text.size() - end <= kHalf);
  return absl::StrCat(Head(text, kHalf), "...", text.substr(end));
}

std::string SchemaPlace::Reference() const {
  // The characters of a URI's fragment (RFC 3986).
  const auto must_encode = [](char c) {
    return !absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
           !absl::StrContains("-._~!$&'()*+,;=:@?", absl::string_view(&c, 1));
  };
  std::string text = "#";
  ForEachStep(*this, [&](absl::string_view name) { AppendStep(name, must_encode, &text); });
  return text;
}

absl::Status RefuseSchema(const SchemaPlace& at, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("grammar.json_schema: ", at.Text(), ": ", what));
}

std::string CutText(absl::string_view text, size_t most_bytes) {
  std::string head(Head(text, most_bytes));
  const bool is_cut = head.size() < text.size();
  if (FindInvalidUtf8(head).has_value()) {
    for (char& c : head) c = static_cast<unsigned char>(c) < 0x80 ? c : '?';
  }
  for (char& c : head) c = absl::ascii_iscntrl(static_cast<unsigned char>(c)) ? '?' : c;
  return is_cut ? absl::StrCat(head, "...") : head;
}

bool IsClosed(const nlohmann::ordered_json& schema) {
  const auto rest = schema.find("additionalProperties");
  return rest != schema.end() && *rest == false && !schema.contains("patternProperties");
}

}  // namespace hearth
