// Recognizes Gemma 3's base models, which follow no instructions. Files do not say this reliably,
// so the name of the file or folder decides.
//
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_CLI_BASE_MODEL_H_
#define HEARTH_SERVICES_CLI_BASE_MODEL_H_

#include <string>

#include "absl/strings/string_view.h"

namespace hearth {

// Returns a sentence for users if `path` is named like a base model, such as "gemma-3-270m.gguf" or
// "google/gemma-3-1b-pt", or is in a folder named so; otherwise "". If no part of `path` contains
// "gemma-3", as in a container's "/models/model", `name` decides: the name that callers see.
std::string BaseModelNote(absl::string_view path, absl::string_view name = "");

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_BASE_MODEL_H_
