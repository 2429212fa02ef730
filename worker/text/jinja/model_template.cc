#include "worker/text/jinja/model_template.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/utf8.h"
#include "worker/model/model_json.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

// The openings of this many answers, from the last, become breakpoints; each breakpoint costs a
// rendering. The next request of a chat begins with this request's prompt, so one breakpoint is
// enough unless answers are replaced.
constexpr size_t kMaxOpenings = 4;
constexpr size_t kMaxCuts = 64;  // limit of the renderings of a request
constexpr size_t kMaxRoleBytes = 32;

// A beginning of the chat that ends at a breakpoint: the first `messages` messages. If `parts` is
// not 0, the last of these messages has only its first `parts` parts.
struct Cut {
  size_t messages = 0, parts = 0;
  bool opens_answer = false;
  bool declared = false;
};

// Returns the chat with its first system messages joined: templates read at most one system
// message.
ChatInput WithOneSystem(ChatInput chat) {
  std::vector<ChatMessage>& messages = chat.messages;
  const auto rest = std::find_if(messages.begin(), messages.end(), [](const ChatMessage& message) {
    return !IsSystemRole(message.role);
  });
  for (auto next = messages.begin(); next != rest; ++next) {
    if (next == messages.begin() || next->parts.empty()) continue;
    next->parts[0].text.insert(0, "\n\n");
    std::move(next->parts.begin(), next->parts.end(), std::back_inserter(messages[0].parts));
  }
  if (rest - messages.begin() > 1) messages.erase(messages.begin() + 1, rest);
  return chat;
}

std::vector<Cut> CutsOf(const ChatInput& chat) {
  const std::vector<ChatMessage>& messages = chat.messages;
  size_t system = 0, openings = 0;
  while (system < messages.size() && IsSystemRole(messages[system].role)) ++system;
  std::vector<Cut> cuts;
  if (system > 0 || !chat.tools.empty()) cuts.push_back({system});
  for (size_t i = messages.size(); i-- > 0;) {
    const std::vector<ChatPart>& parts = messages[i].parts;
    for (size_t j = 0; j < parts.size(); ++j) {
      if (parts[j].cache_breakpoint)
        cuts.push_back({i + 1, j + 1 < parts.size() ? j + 1 : 0, false, true});
    }
    if (i > 0 && IsModelRole(messages[i].role) && openings++ < kMaxOpenings)
      cuts.push_back({i, 0, true});
  }
  return cuts;
}

Json MessageJson(const ChatMessage& message) {
  Json parts = Json::array(), calls = Json::array();
  for (const ChatPart& part : message.parts) parts.push_back(part.text);
  for (const ChatCall& call : message.calls)
    calls.push_back({{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}});
  const std::string role = IsSystemRole(message.role)  ? "system"
                           : IsModelRole(message.role) ? "assistant"
                                                       : message.role;
  return {{"role", role},
          {"parts", std::move(parts)},
          {"tool_calls", std::move(calls)},
          {"tool_call_id", message.call_id},
          {"name", message.name}};
}

Json RequestFor(const ChatInput& chat, ChatEnding ending, const std::vector<Cut>& cuts) {
  const ChatMessage& last = chat.messages.back();
  const bool stays_open =
      ending == ChatEnding::kContinued ||
      (ending == ChatEnding::kOpen && (last.role == "user" || IsSystemRole(last.role)));
  Json messages = Json::array(), asked = Json::array();
  for (const ChatMessage& message : chat.messages) messages.push_back(MessageJson(message));
  for (const Cut& cut : cuts) {
    Json one = {{"messages", cut.messages}, {"generate", cut.opens_answer}};
    if (cut.parts > 0) one["parts"] = cut.parts;
    asked.push_back(std::move(one));
  }
  return {{"messages", std::move(messages)},
          {"tools", chat.tools},
          {"strict", chat.strict},
          {"cuts", std::move(asked)},
          {"ending", ending == ChatEnding::kGenerationPrompt ? "prompt"
                     : stays_open                            ? "open"
                                                             : "closed"}};
}

absl::Status CheckRoleSizes(const ChatInput& chat) {
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const std::string& role = chat.messages[i].role;
    if (!role.empty() && role.size() <= kMaxRoleBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat("chat.messages[", i, "].role: must have 1 to ",
                                                   kMaxRoleBytes, " bytes; got ", role.size()));
  }
  return absl::OkStatus();
}

// Reads the offsets in `list`. Returns false if an offset is not between two characters of `text`.
bool ReadOffsets(const Json& list, const std::string& text, std::vector<size_t>* offsets) {
  if (!list.is_array()) return false;
  for (const Json& item : list) {
    if (!item.is_number_unsigned()) return false;
    const auto at = item.get<uint64_t>();
    if (at > text.size() || !IsUtf8Boundary(text, at)) return false;
    offsets->push_back(at);
  }
  return true;
}

// Returns the chat in the child's answer. `cuts`: the cuts of the request.
absl::StatusOr<RenderedChat> ChatOf(const Json& answer, const std::vector<Cut>& cuts) {
  const absl::Status malformed = absl::UnavailableError("sent a malformed answer");
  const Json& text = JsonAt(answer, {"text"});
  if (!text.is_string()) return malformed;
  RenderedChat chat;
  chat.text = text.get<std::string>();
  std::vector<size_t> ends, plain;
  const bool is_valid = ReadOffsets(JsonAt(answer, {"cuts"}), chat.text, &ends) &&
                        ReadOffsets(JsonAt(answer, {"plain"}), chat.text, &plain);
  if (!is_valid || ends.size() != cuts.size() || !std::is_sorted(plain.begin(), plain.end()))
    return malformed;
  std::vector<std::pair<size_t, bool>> breakpoints;
  for (size_t i = 0; i < ends.size(); ++i) breakpoints.emplace_back(ends[i], cuts[i].declared);
  std::sort(breakpoints.begin(), breakpoints.end());
  for (const auto& [end, declared] : breakpoints) {
    chat.breakpoints.push_back(end);
    chat.declared.push_back(declared);
  }
  for (const size_t at : plain) chat.messages.emplace_back(at, at + 1);
  return chat;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelTemplate>> ModelTemplate::Make(
    const std::string& from, const std::string& text,
    const std::map<std::string, std::string>& variables, const Tokenizer& tokenizer,
    const TemplateLimits& limits) {
  Json special = Json::array();
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string_view name = tokenizer.TokenBytes(id);
    if (tokenizer.IsSpecial(id) && !name.empty() && !FindInvalidUtf8(name).has_value())
      special.push_back(std::string(name));
  }
  std::unique_ptr<ModelTemplate> made(new ModelTemplate);
  made->tools_.name = from;
  made->process_ = std::make_unique<TemplateProcess>(
      Json{{"template", text}, {"variables", variables}, {"special", std::move(special)}}, limits);
  const absl::StatusOr<Json> answer = made->process_->Start();
  if (!answer.ok()) return answer.status();
  const Json& prefix = JsonAt(*answer, {"call", "prefix"});
  const Json& key = JsonAt(*answer, {"call", "key"});
  made->tools_.reads_tools = JsonAt(*answer, {"reads_tools"}) == true;
  if (prefix.is_string() && key.is_string()) {
    made->tools_.call_prefix = prefix.get<std::string>();
    made->tools_.call_key = key.get<std::string>();
  }
  return made;
}

absl::Status ModelTemplate::TemplateError(const absl::Status& why) const {
  return absl::Status(why.code(), absl::StrCat("chat: the model's chat template, ", tools_.name,
                                               ", ", why.message()));
}

absl::StatusOr<RenderedChat> ModelTemplate::Render(const ChatInput& given, ChatEnding ending,
                                                   const std::function<bool()>& stopped) const {
  if (absl::Status status = CheckEnding(given.messages, ending); !status.ok()) return status;
  if (absl::Status status = CheckRoleSizes(given); !status.ok()) return status;
  const ChatInput chat = WithOneSystem(given);
  const std::vector<Cut> cuts = CutsOf(chat);
  if (cuts.size() > kMaxCuts) {
    return TemplateError(absl::InvalidArgumentError(
        absl::StrCat("renders the chat for each cache breakpoint: the chat must have at most ",
                     kMaxCuts - kMaxOpenings - 1, " cache breakpoints")));
  }
  const absl::StatusOr<Json> answer = process_->Ask(RequestFor(chat, ending, cuts), stopped);
  absl::StatusOr<RenderedChat> rendered =
      answer.ok() ? ChatOf(*answer, cuts) : absl::StatusOr<RenderedChat>(answer.status());
  if (absl::IsCancelled(rendered.status())) return rendered;
  if (!rendered.ok()) return TemplateError(rendered.status());
  if (ending == ChatEnding::kGenerationPrompt) {
    rendered->breakpoints.push_back(rendered->text.size());
    rendered->declared.push_back(false);
    rendered->text += chat.answer_prefix;
  }
  return rendered;
}

}  // namespace hearth
