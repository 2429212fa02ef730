#include "services/cli/base_model.h"

#include <regex>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hearth {

std::string BaseModelNote(absl::string_view path, absl::string_view name) {
  // Names of base models have no "-it"; they may have "-pt" and a format. Hugging Face's cache has
  // folders such as models--google--gemma-3-1b-pt.
  static const std::regex base(
      "(.*--|google_)?gemma-3-\\d+[mb](-pt)?([-._](qat|gguf|i?q\\d\\w*|b?f16|f32))*",
      std::regex::icase);
  if (!absl::StrContains(absl::AsciiStrToLower(path), "gemma-3")) path = name;
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (std::regex_match(part.begin(), part.end(), base)) {
      return absl::StrCat(part, " is a base model: it continues text and does not follow ",
                          "instructions");
    }
  }
  return "";
}

}  // namespace hearth
