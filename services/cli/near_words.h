// Finds what a mistyped word was meant to be.
//
// Pure functions.
#ifndef HEARTH_SERVICES_CLI_NEAR_WORDS_H_
#define HEARTH_SERVICES_CLI_NEAR_WORDS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace hearth {

// Those of `words` that differ from `word` in few letters, nearest first, and those that it begins.
std::vector<std::string> NearWords(absl::string_view word, const std::vector<std::string>& words);

// "; did you mean a or b?", or nothing.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& words);

// One sentence for each variable of `environment` (name=value, ended by null) that seems meant for
// `program` and is none of `known`. Such are all that begin with `prefix`, but for those that
// Kubernetes adds for a service of that name, and other HEARTH variables that are near a known one.
std::vector<std::string> MistypedVariables(const char* const* environment,
                                           const std::string& program, const std::string& prefix,
                                           const std::vector<std::string>& known);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_NEAR_WORDS_H_
