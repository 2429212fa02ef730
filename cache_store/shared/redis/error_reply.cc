#include "cache_store/shared/redis/error_reply.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hearth {
namespace {

constexpr size_t kShownBytes = 200;

absl::string_view FirstWord(absl::string_view error) { return error.substr(0, error.find(' ')); }

absl::StatusCode CodeOf(absl::string_view error) {
  static constexpr std::pair<absl::string_view, absl::StatusCode> kCodes[] = {
      {"OOM", absl::StatusCode::kResourceExhausted},
      {"NOPERM", absl::StatusCode::kPermissionDenied},
      {"NOAUTH", absl::StatusCode::kPermissionDenied},
      {"WRONGPASS", absl::StatusCode::kPermissionDenied},
      {"WRONGTYPE", absl::StatusCode::kDataLoss},
      {"MISCONF", absl::StatusCode::kUnavailable},
      {"NOREPLICAS", absl::StatusCode::kUnavailable},
      {"BUSY", absl::StatusCode::kUnavailable},
  };
  for (const auto& [word, code] : kCodes) {
    if (FirstWord(error) == word) return code;
  }
  if (absl::StrContains(error, "not an integer")) return absl::StatusCode::kDataLoss;
  return MeaningOf(error) == ErrorMeaning::kFinal ? absl::StatusCode::kInternal
                                                  : absl::StatusCode::kUnavailable;
}

}  // namespace

ErrorMeaning MeaningOf(absl::string_view error) {
  static constexpr std::pair<absl::string_view, ErrorMeaning> kMeanings[] = {
      {"MOVED", ErrorMeaning::kMoved},        {"ASK", ErrorMeaning::kAsk},
      {"TRYAGAIN", ErrorMeaning::kTryAgain},  {"READONLY", ErrorMeaning::kReadOnly},
      {"CLUSTERDOWN", ErrorMeaning::kNotNow}, {"LOADING", ErrorMeaning::kNotNow},
      {"MASTERDOWN", ErrorMeaning::kNotNow},
  };
  for (const auto& [word, meaning] : kMeanings) {
    if (FirstWord(error) == word) return meaning;
  }
  // A proxy before one Redis may not know the command.
  if (absl::StrContains(error, "cluster support disabled") ||
      absl::StartsWith(error, "ERR unknown command")) {
    return ErrorMeaning::kNoCluster;
  }
  return ErrorMeaning::kFinal;
}

std::optional<NodeAddress> TargetOf(absl::string_view error, const NodeAddress& teller) {
  const std::vector<absl::string_view> words = absl::StrSplit(error, ' ');
  if (words.size() != 3) return std::nullopt;
  absl::StatusOr<NodeAddress> address = ParseNodeAddress(words[2], teller.host);
  if (!address.ok()) return std::nullopt;
  return *std::move(address);
}

absl::Status StatusOfError(absl::string_view error) {
  return absl::Status(CodeOf(error), absl::StrCat("redis answers: ",
                                                  absl::CHexEscape(error.substr(0, kShownBytes))));
}

}  // namespace hearth
