#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/cli/connection.h"
#include "services/hearthctl/chat/conversation.h"
#include "services/hearthctl/chat/edited_lines.h"
#include "services/hearthctl/chat_file.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/generation.h"
#include "services/hearthctl/interrupt.h"

namespace hearth {
namespace {

constexpr char kChatExamples[] =
    R"(  hearthctl chat --system "You answer in one sentence."
  hearthctl chat --history talk.json        (goes on from a list of role and content)
  hearthctl chat --worker 127.0.0.1:7070 --worker 127.0.0.1:7071   (one that dies is replaced)
An empty line does nothing; /help lists the commands (/save, /load, /clear, /exit); Ctrl-C stops an
answer, or leaves, as end of input (Ctrl-D) does. At a terminal lines can be edited, Up brings back
earlier ones, and what is pasted is one turn. Below each answer: tokens taken from the cache, and
time to first token; dimmed, unless NO_COLOR is set.
)";

constexpr char kPrompt[] = "you> ";

struct ChatFlags {
  PeerFlags worker;
  std::vector<std::string> workers;
  GenerationFlags generation;
  std::string system;
  std::string history_file;
  bool json = false;
};

absl::StatusOr<v1::Chat> FirstMessages(const ChatFlags& flags) {
  v1::Chat chat;
  if (!flags.history_file.empty()) {
    auto text = ReadTextFile(flags.history_file);
    if (!text.ok()) return text.status();
    auto history = ParseChat(*text);
    if (!history.ok()) return About(flags.history_file, history.status());
    chat = *history;
  }
  if (!flags.system.empty()) {
    if (chat.messages_size() > 0) {
      return absl::InvalidArgumentError("--system and --history cannot be given together");
    }
    if (absl::Status status = CheckUtf8(flags.system, "--system"); !status.ok()) return status;
    AddMessage(&chat, "system", flags.system);
  }
  return chat;
}

int RunChat(const ChatFlags& flags, Console& console) {
  if (absl::Status status = flags.generation.Check(); !status.ok()) return Fail(console, status);
  auto first = FirstMessages(flags);
  if (!first.ok()) return Fail(console, first.status());
  Interrupt interrupt;  // before the connection's threads
  Conversation conversation(flags.generation, flags.json, flags.worker, flags.workers, &interrupt,
                            &console, *std::move(first), flags.history_file);
  if (absl::Status status = conversation.Connect(); !status.ok()) return Fail(console, status);
  std::unique_ptr<LineSource> lines;
  if (console.terminal && !flags.json) {
    lines = std::make_unique<EditedLines>(kPrompt, &interrupt);
  } else {
    lines = std::make_unique<StreamLines>(&console, flags.json ? "" : kPrompt);
  }
  return conversation.Run(lines.get());
}

}  // namespace

void AddChatCommand(CommandSet* commands) {
  const auto [command, flags] = commands->Add<ChatFlags>(
      "chat", "A conversation that reuses its earlier turns", kChatExamples, RunChat);
  flags->worker.DeclareSeveral(command, &flags->workers);
  command->Add("--system", &flags->system, "the system text");
  command->Add("--history", &flags->history_file, "a JSON file to go on from");
  flags->generation.Declare(command, 512);
  command->AddJson(&flags->json, " for each answer, no prompt sign");
}

}  // namespace hearth
