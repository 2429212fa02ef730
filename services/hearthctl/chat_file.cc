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
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/utf8.h"
#include "services/serving/json_reader.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

absl::Status Bad(const std::string& where, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("chat ", where, " ", why));
}

absl::Status ReadPart(JsonValue json, v1::ContentPart* part) {
  // the root of the JSON document is the list of messages
  const std::string where = absl::StrCat("messages", json.Path());
  if (!json.is_object()) return Bad(where, "must be an object with text");
  bool has_text = false;
  for (const JsonValue value : json.fields()) {
    if (value.name() == "text" && value.is_string()) {
      part->set_text(std::string(*value.Text()));
      has_text = true;
    } else if (const auto is_on = value.Bool(); value.name() == "cache_breakpoint" && is_on.ok()) {
      part->set_cache_breakpoint(*is_on);
    } else if (value.name() == "type" && value.Is("text")) {
      // Other chat programs write a "type" for each part of a message; only the type "text" is
      // supported.
    } else {
      return Bad(where,
                 absl::StrCat("has the unknown or wrongly typed field ", Quoted(value.name()),
                              "; known fields: text (a string), cache_breakpoint (true or false)"));
    }
  }
  return has_text ? absl::OkStatus() : Bad(where, "has no text");
}

absl::Status ReadContent(JsonValue content, const std::string& where, v1::ChatMessage* message) {
  if (content.is_string()) {
    message->add_parts()->set_text(std::string(*content.Text()));
    return absl::OkStatus();
  }
  if (!content.is_list()) return Bad(where, "has a wrong content: must be a string or a list");
  for (const JsonValue part : content.elements()) {
    if (absl::Status status = ReadPart(part, message->add_parts()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadMessage(JsonValue json, const std::string& where, v1::ChatMessage* message) {
  if (!json.is_object()) return Bad(where, "must be an object with role and content");
  std::optional<JsonValue> role, content, ids, breakpoint;
  const std::pair<const char*, std::optional<JsonValue>*> known[] = {
      {"role", &role},
      {"content", &content},
      {"cache_breakpoint", &breakpoint},
      {"token_ids", &ids}};
  for (const JsonValue field : json.fields()) {
    const auto* found = std::find_if(std::begin(known), std::end(known),
                                     [&](const auto& one) { return field.name() == one.first; });
    if (found == std::end(known)) {
      return Bad(where, absl::StrCat("has the unknown field ", Quoted(field.name()),
                                     "; known fields: role, content, cache_breakpoint, token_ids"));
    }
    *found->second = field;
  }
  if (!role.has_value() || !role->is_string()) return Bad(where, "has no role (a string)");
  message->set_role(std::string(*role->Text()));
  if (!content.has_value()) return Bad(where, "has no content");
  if (absl::Status status = ReadContent(*content, where, message); !status.ok()) return status;
  if (ids.has_value()) {
    if (!ids->is_list()) return Bad(where, "has wrong token_ids: must be a list");
    const absl::StatusOr<std::vector<uint32_t>> read = ids->Ids();
    if (!read.ok()) return Bad(where, "has wrong token_ids: must be a list of token ids");
    message->mutable_token_ids()->Add(read->begin(), read->end());
  }
  if (!breakpoint.has_value() || breakpoint->IsBool(false)) return absl::OkStatus();
  if (!breakpoint->IsBool(true)) {
    return Bad(where, "has a wrong cache_breakpoint: must be true or false");
  }
  if (message->parts().empty()) return Bad(where, "has a cache_breakpoint but no text before it");
  message->mutable_parts(message->parts_size() - 1)->set_cache_breakpoint(true);
  return absl::OkStatus();
}

// Reads the stream to its end, or until one byte over the size limit, because a device such as
// /dev/zero has no end.
absl::StatusOr<std::string> ReadAll(std::istream& in, const std::string& path) {
  std::string text;
  std::array<char, 64 << 10> block;
  while (text.size() <= kMaxPromptFileBytes && in) {
    in.read(block.data(), std::min(block.size(), kMaxPromptFileBytes + 1 - text.size()));
    text.append(block.data(), static_cast<size_t>(in.gcount()));
  }
  // std::cin reads through C stdio, so only ferror(stdin) reports a read error.
  if (in.bad() || (&in == &std::cin && std::ferror(stdin) != 0)) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  if (text.size() > kMaxPromptFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is too large: the limit is ", kMaxPromptFileBytes, " bytes"));
  }
  return text;
}

}  // namespace

std::string ChatText(const v1::Chat& chat) {
  std::string text = "[";
  for (const v1::ChatMessage& message : chat.messages()) {
    Json json{{"role", message.role()}};
    Json parts = Json::array();
    bool has_breakpoint = false;
    for (const v1::ContentPart& part : message.parts()) {
      parts.push_back({{"text", part.text()}});
      if (part.cache_breakpoint()) parts.back()["cache_breakpoint"] = true;
      has_breakpoint |= part.cache_breakpoint();
    }
    const bool is_plain = parts.size() == 1 && !has_breakpoint;
    json["content"] = is_plain ? parts[0]["text"] : parts;
    // Saves the token ids of the answer: if they are sent with the next turn, the prompt has the
    // same tokens as the cached prefix.
    for (const uint32_t id : message.token_ids()) json["token_ids"].push_back(id);
    // JsonLine also accepts an answer that ends in the middle of a UTF-8 character.
    absl::StrAppend(&text, text.size() > 1 ? ",\n " : "", JsonLine(json));
  }
  return text + "]\n";
}

void AddMessage(v1::Chat* chat, const std::string& role, const std::string& text) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->add_parts()->set_text(text);
}

absl::StatusOr<v1::Chat> ParseChat(const std::string& text) {
  const absl::StatusOr<JsonDocument> json = JsonDocument::Parse(text, "the chat");
  if (!json.ok()) return json.status();
  if (!json->root().is_list()) {
    return absl::InvalidArgumentError(
        R"(the chat must be a list such as [{"role": "user", "content": "Hello"}])");
  }
  v1::Chat chat;
  for (const JsonValue message : json->root().elements()) {
    const std::string where = absl::StrCat("messages[", chat.messages_size(), "]");
    absl::Status status = ReadMessage(message, where, chat.add_messages());
    if (!status.ok()) return status;
  }
  return chat;
}

absl::Status CheckUtf8(absl::string_view text, absl::string_view what) {
  const std::optional<size_t> wrong = FindInvalidUtf8({text.data(), text.size()});
  if (wrong.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is not valid UTF-8 at byte ", *wrong));
  }
  return absl::OkStatus();
}

std::string TextFileName(const std::string& path) { return path == "-" ? "standard input" : path; }

absl::Status CheckNotEmpty(absl::string_view text, const std::string& path) {
  if (!text.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(TextFileName(path), " is empty"));
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  const std::string name = TextFileName(path);
  std::ifstream file;
  if (path != "-") {
    // Opening a folder as a file succeeds and only reading it fails, so check first.
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
