#include "services/hearthctl/prompt_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/cli/command_line.h"
#include "services/cli/console.h"
#include "services/hearthctl/chat_file.h"

namespace hearth {

absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (absl::ConsumePrefix(&text, "[")) absl::ConsumeSuffix(&text, "]");
  std::vector<uint32_t> ids;
  for (absl::string_view item :
       absl::StrSplit(text, absl::ByAnyChar(", \t\r\n"), absl::SkipEmpty())) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(item, &id)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token_ids[", ids.size(), "] must be a token id; got \"", item.substr(0, 40), "\""));
    }
    ids.push_back(id);
  }
  if (ids.empty()) return absl::InvalidArgumentError("token_ids is empty");
  return ids;
}

CLI::Option* DeclareAdapter(CLI::App* command, std::string* adapter) {
  return command->add_option("--adapter", *adapter,
                             "use this adapter of the worker (hearth-worker --adapter NAME=DIR)");
}

void DeclareHint(CLI::App* command, KeepHint* hint) {
  AddDuration(
      command, "--keep",
      [hint](absl::Duration keep) {
        hint->keep_s = static_cast<uint32_t>(
            absl::ToInt64Seconds(std::min(keep, absl::Seconds(kMaxKeepSeconds))));
      },
      "evict the prompt's entries last (within the tenant) for this long: 10m (at most 1h)");
  command
      ->add_option("--priority", hint->priority,
                   "weight against eviction (within the tenant); each step doubles the value of "
                   "the prompt's entries")
      ->check(CLI::Range(double{-kMaxPriority}, double{kMaxPriority}));
}

void PromptFlags::Declare(CLI::App* command, bool takes_word) {
  CLI::Option_group* const group = command->add_option_group("prompt", "Prompt (exactly one)");
  group->require_option(1);
  const auto mark = [this](const std::string&) { has_prompt_ = true; };
  if (takes_word) group->add_option("text", prompt_, "the same as --prompt")->each(mark);
  group->add_option("--prompt", prompt_, "text of the prompt; <bos> is added in front")->each(mark);
  group->add_option("--prompt-file", prompt_file_, "a file of text; - is standard input");
  group->add_option("--chat", chat_file_,
                    "a JSON file: a list of messages with role and content; - is standard input");
  group->add_option("--token-ids", token_ids_, "token ids: 2,3,4");
  group->add_option("--token-ids-file", token_ids_file_,
                    "a file of token ids; - is standard input");
  command
      ->add_option("--breakpoint", breakpoints_,
                   "store the prompt up to here: a token position for token ids, a byte offset for "
                   "text; may be repeated (a chat has cache_breakpoint instead)")
      ->allow_extra_args(false);
  command->add_flag(
      "--omit-generation-prompt", omit_generation_prompt_,
      "do not start the model's turn; if the last message is the user's, its turn stays "
      "open for more text");
}

absl::StatusOr<v1::PromptInput> PromptFlags::Build() const {
  v1::PromptInput input;
  for (uint32_t breakpoint : breakpoints_) input.add_breakpoints(breakpoint);
  if (has_prompt_) {
    if (absl::Status status = CheckUtf8(prompt_, "--prompt"); !status.ok()) return status;
    input.set_text(prompt_);
  } else if (!prompt_file_.empty()) {
    auto text = ReadTextFile(prompt_file_);
    if (!text.ok()) return text.status();
    if (absl::Status s = CheckNotEmpty(*text, prompt_file_); !s.ok()) return s;
    input.set_text(*text);
  } else if (!chat_file_.empty()) {
    auto text = ReadTextFile(chat_file_);
    if (!text.ok()) return text.status();
    auto chat = ParseChat(*text);
    if (!chat.ok()) return About(TextFileName(chat_file_), chat.status());
    *input.mutable_chat() = *chat;
    input.mutable_chat()->set_omit_generation_prompt(omit_generation_prompt_);
  } else {
    std::string text = token_ids_;
    if (text.empty()) {
      auto file = ReadTextFile(token_ids_file_);
      if (!file.ok()) return file.status();
      text = *file;
    }
    auto ids = ParseTokenIds(text);
    if (!ids.ok()) {
      return token_ids_.empty() ? About(TextFileName(token_ids_file_), ids.status()) : ids.status();
    }
    for (uint32_t id : *ids) input.mutable_token_ids()->add_ids(id);
  }
  return input;
}

}  // namespace hearth
