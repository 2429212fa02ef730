// Finds known words that are similar to a mistyped word.
#ifndef HEARTH_SERVICES_CLI_NEAR_WORDS_H_
#define HEARTH_SERVICES_CLI_NEAR_WORDS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace hearth {

// Returns the words that differ from `word` in a few letters, the most similar first, and the words
// that start with `word`.
std::vector<std::string> NearWords(absl::string_view word, const std::vector<std::string>& words);

// Returns "; did you mean a or b?", or "" if no word is similar.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& words);

// Returns a warning for each environment variable that was probably meant for `program` but is not
// in `known`: it begins with `prefix`; or it begins with HEARTH, does not have the prefix of
// another program, and is similar to a known variable. Variables that Kubernetes sets for a service
// are not reported. `environment`: "name=value" strings, terminated by null.
std::vector<std::string> MistypedVariables(const char* const* environment,
                                           const std::string& program, const std::string& prefix,
                                           const std::vector<std::string>& known);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_NEAR_WORDS_H_
