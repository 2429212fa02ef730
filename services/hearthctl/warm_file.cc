#include "services/hearthctl/warm_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "services/hearthctl/chat_file.h"

namespace hearth {
namespace {

// Throws an error that names the line. ParseWarmFile catches it together with yaml-cpp's own
// exceptions.
[[noreturn]] void Refuse(const YAML::Node& node, const std::string& why) {
  throw YAML::RepresentationException(node.Mark(), why);
}

void CheckKeys(const YAML::Node& node, const std::string& what,
               std::initializer_list<const char*> known) {
  const std::string may_be = absl::StrCat("; known keys: ", absl::StrJoin(known, ", "));
  if (!node.IsMap()) Refuse(node, absl::StrCat(what, " must be a map", may_be));
  for (const auto& item : node) {
    const std::string key = item.first.as<std::string>();
    const bool is_known =
        std::any_of(known.begin(), known.end(), [&](const char* name) { return key == name; });
    if (!is_known) Refuse(item.first, absl::StrCat("unknown key \"", key, "\" in ", what, may_be));
  }
}

bool BoolOr(const YAML::Node& node, bool otherwise) { return node ? node.as<bool>() : otherwise; }

void ReadPrompt(const YAML::Node& node, const std::string& folder, WarmEntry* entry) {
  CheckKeys(node, "prompt",
            {"name", "text", "text_file", "token_ids", "breakpoints", "pin", "ttl", "adapter"});
  const int sources =
      (node["text"] ? 1 : 0) + (node["text_file"] ? 1 : 0) + (node["token_ids"] ? 1 : 0);
  if (sources != 1) Refuse(node, "a prompt needs exactly one of text, text_file, token_ids");
  if (node["text"]) {
    entry->prompt.set_text(node["text"].as<std::string>());
  } else if (node["text_file"]) {
    const std::string path = node["text_file"].as<std::string>();
    if (path.empty()) Refuse(node["text_file"], "text_file must not be empty");
    auto text = ReadTextFile(path.front() == '/' ? path : folder + "/" + path);
    if (!text.ok()) Refuse(node["text_file"], std::string(text.status().message()));
    entry->prompt.set_text(*text);
  } else {
    for (const YAML::Node& id : node["token_ids"]) {
      entry->prompt.mutable_token_ids()->add_ids(id.as<uint32_t>());
    }
  }
  for (const YAML::Node& breakpoint : node["breakpoints"]) {
    entry->prompt.add_breakpoints(breakpoint.as<uint32_t>());
  }
}

void ReadMessage(const YAML::Node& node, v1::ChatMessage* message) {
  CheckKeys(node, "message", {"role", "content", "cache_breakpoint"});
  if (!node["role"] || !node["content"]) Refuse(node, "a message needs role and content");
  message->set_role(node["role"].as<std::string>());
  if (node["content"].IsSequence()) {
    for (const YAML::Node& part : node["content"]) {
      CheckKeys(part, "content part", {"text", "cache_breakpoint"});
      if (!part["text"]) Refuse(part, "a content part needs text");
      v1::ContentPart* out = message->add_parts();
      out->set_text(part["text"].as<std::string>());
      out->set_cache_breakpoint(BoolOr(part["cache_breakpoint"], false));
    }
  } else {
    message->add_parts()->set_text(node["content"].as<std::string>());
  }
  if (BoolOr(node["cache_breakpoint"], false)) {
    if (message->parts().empty()) Refuse(node, "cache_breakpoint needs a text in its message");
    message->mutable_parts(message->parts_size() - 1)->set_cache_breakpoint(true);
  }
}

void ReadChat(const YAML::Node& node, WarmEntry* entry) {
  CheckKeys(node, "chat", {"name", "messages", "generation_prompt", "pin", "ttl", "adapter"});
  if (!node["messages"] || !node["messages"].IsSequence()) {
    Refuse(node, "a chat needs a list of messages");
  }
  v1::Chat* chat = entry->prompt.mutable_chat();
  chat->set_omit_generation_prompt(!BoolOr(node["generation_prompt"], true));
  for (const YAML::Node& message : node["messages"]) ReadMessage(message, chat->add_messages());
}

void ReadEntries(const YAML::Node& list, const std::string& what, const std::string& folder,
                 std::vector<WarmEntry>* entries) {
  if (!list) return;
  if (!list.IsSequence()) Refuse(list, what + " must be a list");
  for (size_t i = 0; i < list.size(); ++i) {
    const YAML::Node& node = list[i];
    WarmEntry entry;
    if (what == "prompts") {
      ReadPrompt(node, folder, &entry);
    } else {
      ReadChat(node, &entry);
    }
    entry.name = node["name"] ? node["name"].as<std::string>() : absl::StrCat(what, "[", i, "]");
    entry.pin = BoolOr(node["pin"], false);
    if (node["adapter"]) entry.adapter = node["adapter"].as<std::string>();
    if (node["ttl"]) {
      const absl::StatusOr<uint32_t> ttl = ParseTtl(node["ttl"].as<std::string>());
      if (!ttl.ok()) Refuse(node["ttl"], std::string(ttl.status().message()));
      entry.ttl_s = *ttl;
    }
    entries->push_back(std::move(entry));
  }
}

}  // namespace

absl::StatusOr<uint32_t> ParseTtl(const std::string& text) {
  absl::Duration ttl;
  if (absl::ParseDuration(text, &ttl) && ttl >= absl::Seconds(1) &&
      ttl <= absl::Seconds(UINT32_MAX)) {
    return static_cast<uint32_t>(absl::ToInt64Seconds(ttl));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "ttl: must be a duration of at least 1s, such as 90m or 36h; got \"", text, "\""));
}

absl::StatusOr<std::vector<WarmEntry>> ParseWarmFile(const std::string& yaml,
                                                     const std::string& folder) {
  std::vector<WarmEntry> entries;
  try {
    const YAML::Node root = YAML::Load(yaml);
    if (root.IsNull()) return absl::InvalidArgumentError("the file is empty");
    CheckKeys(root, "the file", {"prompts", "chats"});
    ReadEntries(root["prompts"], "prompts", folder, &entries);
    ReadEntries(root["chats"], "chats", folder, &entries);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("line ", error.mark.line + 1, ": ", error.msg));
  }
  if (entries.empty()) return absl::InvalidArgumentError("the file has no prompts and no chats");
  return entries;
}

}  // namespace hearth
