// Reads text from files, and parses chat messages from JSON: a list of {"role", "content",
// "cache_breakpoint"}.
//
// The content is a string, or a list of parts {"text", "cache_breakpoint"}. The cache_breakpoint of
// a message is at the end of the message. Thread safety: pure functions.
#ifndef HEARTH_SERVICES_HEARTHCTL_CHAT_FILE_H_
#define HEARTH_SERVICES_HEARTHCTL_CHAT_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/inference.pb.h"

namespace hearth {

// Longest file that a command reads as a prompt: four times the size limit of a request.
inline constexpr size_t kMaxPromptFileBytes = size_t{12} << 20;

// Parses a chat. kInvalidArgument names the index of the message and what is wrong. The worker
// checks the roles; this function does not.
absl::StatusOr<v1::Chat> ParseChat(const std::string& json);

// Returns the chat as JSON that ParseChat can read, one message per line.
std::string ChatText(const v1::Chat& chat);
void AddMessage(v1::Chat* chat, const std::string& role, const std::string& text);

// Returns kInvalidArgument "`what` is not valid UTF-8 at byte N" if `text` is not UTF-8. Call it
// before sending the text, because only the caller knows which file or flag the text came from.
absl::Status CheckUtf8(absl::string_view text, absl::string_view what);

// Reads a whole file of UTF-8 text; the path "-" is standard input. kNotFound and kInvalidArgument
// name the file.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);
// Returns the name of such a file for messages: its path, or "standard input".
std::string TextFileName(const std::string& path);
// Returns kInvalidArgument "NAME is empty" if `text`, read from `path`, is empty.
absl::Status CheckNotEmpty(absl::string_view text, const std::string& path);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_CHAT_FILE_H_
