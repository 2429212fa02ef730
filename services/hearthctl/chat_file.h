// Reads text from files, and chat messages from JSON: a list of {"role", "content",
// "cache_breakpoint"}. The content is a string or a list of parts {"text", "cache_breakpoint"}. A
// message's own cache_breakpoint is at the end of the message.
//
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_HEARTHCTL_CHAT_FILE_H_
#define HEARTH_SERVICES_HEARTHCTL_CHAT_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/inference.pb.h"

namespace hearth {

// Longest file that a command reads as a prompt: four times the largest request.
inline constexpr size_t kMaxPromptFileBytes = size_t{12} << 20;

// kInvalidArgument names the message's index and the mistake. Roles are not checked here, but by
// the worker.
absl::StatusOr<v1::Chat> ParseChat(const std::string& json);

// Returns the chat as JSON for ParseChat, one message per line.
std::string ChatText(const v1::Chat& chat);
void AddMessage(v1::Chat* chat, const std::string& role, const std::string& text);

// kInvalidArgument: "`what` is not valid UTF-8 at byte N". Call it before sending the text, because
// only the caller knows which file or flag the text came from.
absl::Status CheckUtf8(absl::string_view text, absl::string_view what);

// Reads a whole file of UTF-8 text; "-" is standard input. kNotFound and kInvalidArgument name the
// file.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_CHAT_FILE_H_
