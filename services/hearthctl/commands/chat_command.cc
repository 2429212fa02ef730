#include <memory>

#include "absl/strings/ascii.h"
#include "services/hearthctl/chat_file.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/connection.h"
#include "services/hearthctl/generation.h"
#include "services/hearthctl/interrupt.h"

namespace hearth {
namespace {

constexpr char kChatExamples[] =
    R"(  hearthctl chat --system "You answer in one sentence."
  hearthctl chat --history talk.json        (goes on from a list of role and content)
An empty line does nothing; /reset forgets the conversation; Ctrl-C stops an answer, or leaves, as
end of input (Ctrl-D) does. Below each answer: tokens taken from the cache, and time to first token.
)";

struct ChatFlags {
  PeerFlags worker;
  GenerationFlags generation;
  std::string system;
  std::string history_file;
  bool json = false;
};

void AddMessage(v1::Chat* chat, const std::string& role, const std::string& text) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->add_parts()->set_text(text);
}

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

class Conversation {
 public:
  Conversation(const ChatFlags& flags, v1::Chat first, std::shared_ptr<grpc::Channel> channel,
               Interrupt* interrupt, Console* console)
      : flags_(flags),
        interrupt_(interrupt),
        first_(first),
        chat_(std::move(first)),
        stub_(v1::Inference::NewStub(std::move(channel))),
        console_(console) {}

  // Until the end of input. Fails only when the connection is gone.
  int Run() {
    std::string line;
    while (Prompt(), std::getline(console_->in, line)) {
      const std::string text(absl::StripAsciiWhitespace(line));
      if (text.empty()) continue;
      if (text == "/reset") {
        chat_ = first_;
        continue;
      }
      if (absl::Status status = CheckUtf8(text, "the question"); !status.ok()) {
        Fail(*console_, status);
        continue;
      }
      const int code = Answer(text);
      if (code != kExitOk) return code;
    }
    if (!flags_.json) console_->out << std::endl;
    return kExitOk;
  }

 private:
  void Prompt() {
    if (!flags_.json) console_->out << "you> " << std::flush;
  }

  int Answer(const std::string& text) {
    AddMessage(&chat_, "user", text);
    v1::GenerateRequest request;
    *request.mutable_prompt()->mutable_chat() = chat_;
    flags_.generation.Apply(&request);
    GenerationEvents events;
    if (!flags_.json) {
      events.token = [this](const v1::GeneratedToken& token) {
        console_->out << token.text() << std::flush;
      };
    }
    grpc::ClientContext context;
    interrupt_->SetAction([&context] { context.TryCancel(); });
    const GenerationResult result = Generate(stub_.get(), request, &context, events);
    interrupt_->SetAction(nullptr);
    return Finish(result);
  }

  // A stopped answer stays in the history as far as it came; a refused question leaves it.
  int Finish(const GenerationResult& result) {
    const bool stopped = result.status.error_code() == grpc::StatusCode::CANCELLED;
    if (!result.status.ok() && !(stopped && !result.samples[0].text.empty())) {
      chat_.mutable_messages()->RemoveLast();
      if (stopped) {
        console_->out << std::endl;
        return kExitOk;
      }
      const int code = Fail(*console_, RpcFailure(result.status, flags_.worker));
      return result.status.error_code() == grpc::StatusCode::UNAVAILABLE ? code : kExitOk;
    }
    AddMessage(&chat_, "model", result.samples[0].text);
    if (flags_.json) {
      console_->out << JsonLine(result.ToJson()) << std::endl;
    } else {
      console_->out << "\n     [" << CacheSentence(result) << (stopped ? ", stopped" : "") << "]\n";
    }
    return kExitOk;
  }

  const ChatFlags& flags_;
  Interrupt* const interrupt_;
  const v1::Chat first_;
  v1::Chat chat_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  Console* const console_;
};

int RunChat(const ChatFlags& flags, Console& console) {
  if (absl::Status status = flags.generation.Check(); !status.ok()) return Fail(console, status);
  auto first = FirstMessages(flags);
  if (!first.ok()) return Fail(console, first.status());
  Interrupt interrupt;  // before the connection's threads
  auto channel = Connect(flags.worker);
  if (!channel.ok()) return Fail(console, channel.status());
  return Conversation(flags, *std::move(first), *std::move(channel), &interrupt, &console).Run();
}

}  // namespace

void AddChatCommand(CommandSet* commands) {
  const auto [command, flags] = commands->Add<ChatFlags>(
      "chat", "A conversation that reuses its earlier turns", kChatExamples, RunChat);
  flags->worker.Declare(command);
  command->Add("--system", &flags->system, "the system text");
  command->Add("--history", &flags->history_file, "a JSON file to go on from");
  flags->generation.Declare(command, 512);
  command->AddJson(&flags->json, " for each answer, no prompt sign");
}

}  // namespace hearth
