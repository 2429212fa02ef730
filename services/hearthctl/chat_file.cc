#include "services/hearthctl/chat_file.h"

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

absl::Status Bad(const std::string& where, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("chat ", where, " ", why));
}

absl::Status ReadPart(const nlohmann::json& json, const std::string& where, v1::ContentPart* part) {
  if (!json.is_object()) return Bad(where, "is not an object with text");
  for (const auto& [key, value] : json.items()) {
    if (key == "text" && value.is_string()) {
      part->set_text(value.get<std::string>());
    } else if (key == "cache_breakpoint" && value.is_boolean()) {
      part->set_cache_breakpoint(value.get<bool>());
    } else if (key == "type" && value == "text") {
      // Written by other chat programs; text is all there is.
    } else {
      return Bad(where, absl::StrCat("has the field \"", key,
                                     "\" or its type wrong; known are text (a string) and "
                                     "cache_breakpoint (true or false)"));
    }
  }
  if (!json.contains("text")) return Bad(where, "has no text");
  return absl::OkStatus();
}

absl::Status ReadContent(const nlohmann::json& content, const std::string& where,
                         v1::ChatMessage* message) {
  if (content.is_string()) {
    message->add_parts()->set_text(content.get<std::string>());
    return absl::OkStatus();
  }
  if (!content.is_array()) return Bad(where, "has a content that is no string and no list");
  for (size_t i = 0; i < content.size(); ++i) {
    absl::Status status =
        ReadPart(content[i], absl::StrCat(where, ".content[", i, "]"), message->add_parts());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadMessage(const nlohmann::json& json, const std::string& where,
                         v1::ChatMessage* message) {
  if (!json.is_object()) return Bad(where, "is not an object with role and content");
  for (const auto& [key, value] : json.items()) {
    if (key == "role" || key == "content" || key == "cache_breakpoint") continue;
    return Bad(where, absl::StrCat("has the unknown field \"", key,
                                   "\"; known are role, content and cache_breakpoint"));
  }
  const auto role = json.find("role");
  if (role == json.end() || !role->is_string()) return Bad(where, "has no role (a string)");
  message->set_role(role->get<std::string>());
  const auto content = json.find("content");
  if (content == json.end()) return Bad(where, "has no content");
  if (absl::Status status = ReadContent(*content, where, message); !status.ok()) return status;
  const auto breakpoint = json.find("cache_breakpoint");
  if (breakpoint == json.end()) return absl::OkStatus();
  if (!breakpoint->is_boolean()) {
    return Bad(where, "has a cache_breakpoint that is not true or false");
  }
  if (!breakpoint->get<bool>()) return absl::OkStatus();
  if (message->parts().empty()) return Bad(where, "has a cache_breakpoint and nothing before it");
  message->mutable_parts(message->parts_size() - 1)->set_cache_breakpoint(true);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Chat> ParseChat(const std::string& text) {
  const nlohmann::json json =
      nlohmann::json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("the chat is not JSON");
  if (!json.is_array()) {
    return absl::InvalidArgumentError(
        R"(the chat is not a list, like [{"role": "user", "content": "Hello"}])");
  }
  v1::Chat chat;
  for (size_t i = 0; i < json.size(); ++i) {
    absl::Status status =
        ReadMessage(json[i], absl::StrCat("messages[", i, "]"), chat.add_messages());
    if (!status.ok()) return status;
  }
  return chat;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ostringstream content;
  if (path == "-") {
    content << std::cin.rdbuf();
  } else {
    std::ifstream file(path, std::ios::binary);
    if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
    content << file.rdbuf();
    if (file.bad()) return absl::NotFoundError(absl::StrCat(path, " is not a readable file"));
  }
  std::string text = content.str();
  if (text.size() > kMaxPromptFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", text.size(), " bytes, the limit is ", kMaxPromptFileBytes));
  }
  return text;
}

}  // namespace hearth
