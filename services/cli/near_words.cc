#include "services/cli/near_words.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace hearth {
namespace {

constexpr size_t kMostSuggested = 3;
// Largest edit distance at which a variable that has another prefix is reported as mistyped.
constexpr size_t kNearVariable = 2;

// Returns the Levenshtein distance: the least number of letters to insert, delete or replace to
// turn one word into the other.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// Returns whether Kubernetes sets a variable of this form for each service that a pod can see, such
// as HEARTH_STORE_SERVICE_HOST or HEARTH_STORE_PORT_7080_TCP_ADDR.
bool IsKubernetesVariable(const std::string& name) {
  if (absl::EndsWith(name, "_SERVICE_HOST") || absl::EndsWith(name, "_PORT")) return true;
  if (absl::StrContains(name, "_SERVICE_PORT")) return true;
  const size_t port = name.find("_PORT_");
  return port != name.npos &&
         (absl::StrContains(name, "_TCP") || absl::StrContains(name, "_UDP")) &&
         name.find_first_of("0123456789", port) == port + 6;
}

bool HasProgramPrefix(const std::string& name) {
  for (const char* prefix : {"HEARTH_STORE_", "HEARTH_WORKER_", "HEARTHCTL_"}) {
    if (absl::StartsWith(name, prefix)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> NearWords(absl::string_view word, const std::vector<std::string>& words) {
  const size_t near_enough = std::max<size_t>(1, word.size() / 3);
  std::multimap<size_t, std::string> near;
  for (const std::string& candidate : words) {
    const size_t distance = EditDistance(word, candidate);
    const bool begins = absl::StartsWith(candidate, word);
    if (distance <= near_enough || begins) near.emplace(begins ? 1 : distance, candidate);
  }
  std::vector<std::string> found;
  for (auto& [distance, candidate] : near) {
    if (found.size() == kMostSuggested || distance > near.begin()->first + 1) break;
    found.push_back(std::move(candidate));
  }
  return found;
}

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& words) {
  const std::vector<std::string> near = NearWords(word, words);
  return near.empty() ? "" : absl::StrCat("; did you mean ", absl::StrJoin(near, " or "), "?");
}

std::vector<std::string> MistypedVariables(const char* const* environment,
                                           const std::string& program, const std::string& prefix,
                                           const std::vector<std::string>& known) {
  std::vector<std::string> sentences;
  for (; *environment != nullptr; ++environment) {
    const std::pair<std::string, std::string> variable =
        absl::StrSplit(*environment, absl::MaxSplits('=', 1));
    const std::string& name = variable.first;
    if (!absl::StartsWith(name, "HEARTH") || IsKubernetesVariable(name)) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const bool is_near = std::any_of(known.begin(), known.end(), [&name](const std::string& one) {
      return EditDistance(name, one) <= kNearVariable;
    });
    if (!absl::StartsWith(name, prefix) && (HasProgramPrefix(name) || !is_near)) continue;
    sentences.push_back(absl::StrCat("environment: ", name, " is not a variable of ", program,
                                     " and was ignored", DidYouMean(name, known)));
  }
  return sentences;
}

}  // namespace hearth
