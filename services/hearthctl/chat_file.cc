#include "services/hearthctl/chat_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>

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
    if (key == "role" || key == "content" || key == "cache_breakpoint" || key == "token_ids")
      continue;
    return Bad(where, absl::StrCat("has the unknown field \"", key,
                                   "\"; known are role, content, cache_breakpoint, token_ids"));
  }
  const auto role = json.find("role");
  if (role == json.end() || !role->is_string()) return Bad(where, "has no role (a string)");
  message->set_role(role->get<std::string>());
  const auto content = json.find("content");
  if (content == json.end()) return Bad(where, "has no content");
  if (absl::Status status = ReadContent(*content, where, message); !status.ok()) return status;
  if (const auto ids = json.find("token_ids"); ids != json.end()) {
    if (!ids->is_array()) return Bad(where, "has token_ids that are no list");
    for (const auto& id : *ids) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
        return Bad(where, "has token_ids that are no numbers of tokens");
      }
      message->add_token_ids(id.get<uint32_t>());
    }
  }
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

// How long a character that begins with `lead` is, and what its second byte may be (Unicode table
// 3-7: no overlong form, no surrogate, nothing above U+10FFFF). Length 0: no character does.
struct LeadRule {
  size_t length;
  uint8_t second_min, second_max;
};

LeadRule RuleFor(uint8_t lead) {
  if (lead < 0x80) return {1, 0x80, 0xBF};
  if (lead < 0xC2 || lead > 0xF4) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead < 0xF0) {
    return {3, uint8_t(lead == 0xE0 ? 0xA0 : 0x80), uint8_t(lead == 0xED ? 0x9F : 0xBF)};
  }
  return {4, uint8_t(lead == 0xF0 ? 0x90 : 0x80), uint8_t(lead == 0xF4 ? 0x8F : 0xBF)};
}

// 0 when `text` does not begin with a whole character.
size_t FirstCharBytes(absl::string_view text) {
  const LeadRule rule = RuleFor(static_cast<uint8_t>(text[0]));
  if (rule.length > text.size()) return 0;
  for (size_t i = 1; i < rule.length; ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    if (byte < (i == 1 ? rule.second_min : 0x80) || byte > (i == 1 ? rule.second_max : 0xBF)) {
      return 0;
    }
  }
  return rule.length;
}

// Reads to the end, or one byte past the limit: a device may have no end.
absl::StatusOr<std::string> ReadAll(std::istream& in, const std::string& path) {
  std::string text;
  std::array<char, 64 << 10> block;
  while (text.size() <= kMaxPromptFileBytes && in) {
    in.read(block.data(), std::min(block.size(), kMaxPromptFileBytes + 1 - text.size()));
    text.append(block.data(), static_cast<size_t>(in.gcount()));
  }
  // Standard input goes through stdio, which alone knows of its errors.
  if (in.bad() || (&in == &std::cin && std::ferror(stdin) != 0)) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  if (text.size() > kMaxPromptFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is too long: the limit is ", kMaxPromptFileBytes, " bytes"));
  }
  return text;
}

}  // namespace

std::string ChatText(const v1::Chat& chat) {
  std::string text = "[";
  for (const v1::ChatMessage& message : chat.messages()) {
    nlohmann::ordered_json json{{"role", message.role()}};
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    bool has_breakpoint = false;
    for (const v1::ContentPart& part : message.parts()) {
      parts.push_back({{"text", part.text()}});
      if (part.cache_breakpoint()) parts.back()["cache_breakpoint"] = true;
      has_breakpoint |= part.cache_breakpoint();
    }
    const bool is_plain = parts.size() == 1 && !has_breakpoint;
    json["content"] = is_plain ? parts[0]["text"] : parts;
    // Of an answer: what it was made of, for the cache.
    for (const uint32_t id : message.token_ids()) json["token_ids"].push_back(id);
    // An answer may end within a character.
    absl::StrAppend(&text, text.size() > 1 ? ",\n " : "",
                    json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return text + "]\n";
}

void AddMessage(v1::Chat* chat, const std::string& role, const std::string& text) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->add_parts()->set_text(text);
}

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

absl::Status CheckUtf8(absl::string_view text, absl::string_view what) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = FirstCharBytes(text.substr(at));
    if (bytes == 0) {
      return absl::InvalidArgumentError(absl::StrCat(what, " is not valid UTF-8 at byte ", at));
    }
    at += bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  const std::string name = path == "-" ? "standard input" : path;
  std::ifstream file;
  if (path != "-") {
    // A folder can be opened, and only reading it fails.
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is a folder, not a file of text"));
    }
    file.open(path, std::ios::binary);
    if (!file) {
      return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
    }
  }
  auto text = ReadAll(path == "-" ? std::cin : file, name);
  if (!text.ok()) return text.status();
  if (absl::Status status = CheckUtf8(*text, name); !status.ok()) return status;
  return text;
}

}  // namespace hearth
