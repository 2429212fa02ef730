#include "services/hearthctl/chat/pasted_texts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace hearth {

std::string PastedTexts::Add(std::string text) {
  // Terminals send the Return key's byte for a line end.
  text = absl::StrReplaceAll(text, {{"\r\n", "\n"}, {"\r", "\n"}});
  const auto ends = std::count(text.begin(), text.end(), '\n');
  // Typed, a tab would be lost, and other control characters would be keys.
  const bool is_typable =
      text.size() <= kMaxShownBytes && std::none_of(text.begin(), text.end(), [](char c) {
        return absl::ascii_iscntrl(static_cast<unsigned char>(c));
      });
  if (is_typable) return text;
  const auto lines = ends + (text.back() == '\n' ? 0 : 1);
  std::string mark =
      absl::StrCat("[pasted ", pasted_.size() + 1, ": ", lines, lines == 1 ? " line]" : " lines]");
  pasted_.push_back({mark, std::move(text)});
  return mark;
}

std::string PastedTexts::LeaveOut(const std::string& what) {
  std::string mark = absl::StrCat("[", what, ": left out]");
  pasted_.push_back({mark, ""});
  return mark;
}

std::string PastedTexts::Expand(const std::string& line) const {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const Pasted& pasted : pasted_) texts.emplace_back(pasted.mark, pasted.text);
  return absl::StrReplaceAll(line, texts);
}

}  // namespace hearth
