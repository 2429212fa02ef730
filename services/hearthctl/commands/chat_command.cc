// The command chat: a conversation with a worker. If a worker is unavailable, chat continues with
// the next worker of --worker.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/inference.grpc.pb.h"
#include "services/cli/base_model.h"
#include "services/cli/connection.h"
#include "services/hearthctl/chat_file.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/edited_lines.h"
#include "services/hearthctl/generation.h"
#include "services/hearthctl/interrupt.h"
#include "services/hearthctl/model_info.h"
#include "services/hearthctl/new_file.h"

namespace hearth {
namespace {

constexpr char kChatExamples[] =
    R"(  hearthctl chat --system "You answer in one sentence."
  hearthctl chat --history talk.json        (continues a saved conversation)
  hearthctl chat --worker 127.0.0.1:7070 --worker 127.0.0.1:7071   (failover)
/help lists the commands (/save, /load, /clear, /exit). Ctrl-C stops an answer; Ctrl-C without an
answer, or Ctrl-D, ends the chat. At a terminal lines can be edited, Up shows earlier lines, and a
pasted text is one turn. Below each answer: tokens taken from the cache, and time to first token;
dimmed unless NO_COLOR is set.
)";

constexpr char kCommands[] =
    "/help          this list\n"
    "/clear         forget the conversation except the system text (also /reset)\n"
    "/save FILE     write the conversation to a file for /load and chat --history\n"
    "/load FILE     continue a saved conversation\n"
    "/exit          end the chat, like Ctrl-C and Ctrl-D\n"
    "Keys: arrows, Home, End; Up and Ctrl-R for earlier lines; Ctrl-C stops an answer.\n"
    "A pasted text is one turn, line ends included.";

// Returns the command that an input line begins with, such as "/save" for "/save FILE"; "" if the
// line is a question, such as "/etc/passwd is what?".
std::string CommandWord(const std::string& line) {
  if (line[0] != '/' || line.find('\n') != line.npos) return "";
  const std::string word = line.substr(0, line.find(' '));
  const bool is_word = word.size() > 1 && std::all_of(word.begin() + 1, word.end(), [](char c) {
                         return absl::ascii_islower(static_cast<unsigned char>(c));
                       });
  return is_word ? word : "";
}

bool NoWorkerAnswered(const GenerationResult& result) {
  return result.status.error_code() == grpc::StatusCode::UNAVAILABLE;
}

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

// Conversation: the turns of a user and a model. Each turn is sent to a worker together with all
// earlier turns.
//
// Thread safety: none. Ownership: borrows all constructor arguments.
class Conversation {
 public:
  // Returns the next input line without its line end; nullopt at the end of the input.
  using Lines = std::function<std::optional<std::string>()>;

  Conversation(const ChatFlags& flags, v1::Chat first, Interrupt* interrupt, Console* console)
      : flags_(flags),
        worker_(flags.worker),
        interrupt_(interrupt),
        console_(console),
        first_(std::move(first)),
        chat_(first_),
        file_(flags.history_file) {}

  // Connects to the first worker that answers, beginning with the current worker. The error names
  // all workers that were tried.
  absl::Status Connect() {
    absl::Status failure;
    for (size_t tried = 0; tried < flags_.workers.size(); ++tried) {
      worker_.address = flags_.workers[present_];
      auto channel = hearth::Connect(worker_);
      if (channel.ok()) {
        stub_ = v1::Inference::NewStub(*channel);
        return absl::OkStatus();
      }
      failure = failure.ok()
                    ? channel.status()
                    : NotReached(absl::StrCat(failure.message(), "; ", channel.status().message()));
      if (!absl::IsUnavailable(channel.status())) return failure;
      present_ = (present_ + 1) % flags_.workers.size();
    }
    return failure;
  }

  // Prints a note if the worker's model is a base model. Ignores errors, because the first turn
  // reports them.
  void NoteBaseModel() const {
    const auto model = GetModel(worker_);
    const std::string note = model.ok() ? BaseModelNote(model->model_dir()) : "";
    if (!note.empty()) PrintDimmed(absl::StrCat("[", note, "]"), console_->err);
  }

  // Reads and answers lines until the end of the input. Returns the exit code. If no worker
  // answers, returns at once; at a terminal, prints the error and continues. REQUIRES: Connect
  // succeeded.
  int Run(const Lines& next_line) {
    Console& console = *console_;
    while (const std::optional<std::string> line = next_line()) {
      if (!console.out) return kExitFailed;
      const std::string text(absl::StripAsciiWhitespace(*line));
      if (text.empty()) continue;
      if (!CommandWord(text).empty()) {
        if (!Command(text)) return kExitOk;
        continue;
      }
      if (absl::Status status = CheckUtf8(text, "the question"); !status.ok()) {
        Fail(console, status);
        continue;
      }
      const int code = Answer(text);
      if (code != kExitOk && !console.terminal) return code;
    }
    if (!flags_.json) console.out << std::endl;
    return kExitOk;
  }

 private:
  // Runs a command line such as "/save talk.json". Returns false if the conversation should end.
  bool Command(const std::string& line) {
    const std::pair<std::string, std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    const std::string& word = words.first;
    const std::string path(absl::StripAsciiWhitespace(words.second));
    if (word == "/exit" || word == "/quit") return false;
    if (word == "/clear" || word == "/reset") {
      chat_ = first_;
    } else if (word == "/help") {
      Tell(kCommands);
    } else if ((word == "/save" || word == "/load") && path.empty()) {
      Tell(absl::StrCat(word, " needs a file: ", word, " talk.json"));
    } else if (word == "/save") {
      Save(path);
    } else if (word == "/load") {
      Load(path);
    } else {
      Tell(absl::StrCat("unknown command ", word, "; /help lists the commands"));
    }
    return true;
  }

  void Save(const std::string& path) {
    auto file = NewFile::Create(path, /*replaces=*/path == file_);
    absl::Status status = file.ok() ? (*file)->WriteAt(0, ChatText(chat_)) : file.status();
    if (status.ok()) status = (*file)->Commit();
    if (absl::IsAlreadyExists(status)) {
      status = absl::AlreadyExistsError(absl::StrCat(path, " exists; choose another file"));
    }
    if (!status.ok()) {
      Fail(*console_, status);
      return;
    }
    file_ = path;
    Tell(absl::StrCat("saved ", chat_.messages_size(), " messages to ", path));
  }

  void Load(const std::string& path) {
    auto text = ReadTextFile(path);
    auto chat = text.ok() ? ParseChat(*text) : absl::StatusOr<v1::Chat>(text.status());
    if (!chat.ok()) {
      Fail(*console_, text.ok() ? About(path, chat.status()) : chat.status());
      return;
    }
    chat_ = *std::move(chat);
    file_ = path;
    Tell(absl::StrCat("loaded ", chat_.messages_size(), " messages from ", path));
  }

  // Sends the user's turn, and adds it and the answer to the conversation. Returns the exit code.
  int Answer(const std::string& text) {
    AddMessage(&chat_, "user", text);
    v1::GenerateRequest request;
    *request.mutable_prompt()->mutable_chat() = chat_;
    flags_.generation.Apply(&request);
    GenerationResult result = Ask(request);
    // If the worker is unavailable, sends the turn to the next worker, which generates the answer
    // from its first token.
    for (size_t asked = 1; asked < flags_.workers.size() && NoWorkerAnswered(result); ++asked) {
      present_ = (present_ + 1) % flags_.workers.size();
      if (!Connect().ok()) break;
      if (!result.samples[0].text.empty()) console_->out << std::endl;
      PrintDimmed(absl::StrCat("[", failure_.message(), "; asking ", worker_.address, "]"),
                  console_->err);
      result = Ask(request);
    }
    return Finish(result);
  }

  GenerationResult Ask(const v1::GenerateRequest& request) {
    GenerationEvents events;
    bool first = true;
    if (!flags_.json) {
      events.token = [this, &first](const v1::GeneratedToken& token) {
        if (std::exchange(first, false)) console_->out << "model> ";
        return PrintAnswer(token.text(), *console_);
      };
    }
    grpc::ClientContext context;
    interrupt_->SetAction([&context] { context.TryCancel(); });
    ProgressLine progress(console_);
    GenerationResult result = Generate(stub_.get(), request, &context, events, &progress);
    interrupt_->SetAction(nullptr);
    failure_ = RpcFailure(result.status, worker_);
    return result;
  }

  // If an answer was stopped, adds the generated text to the conversation. If the worker refused
  // the turn, removes the turn.
  int Finish(const GenerationResult& result) {
    Console& console = *console_;
    const bool stopped = result.status.error_code() == grpc::StatusCode::CANCELLED;
    if (!result.status.ok() && !(stopped && !result.samples[0].text.empty())) {
      chat_.mutable_messages()->RemoveLast();
      if (stopped || !result.samples[0].text.empty()) console.out << std::endl;
      if (stopped) return kExitOk;
      const int code = Fail(console, failure_);
      return NoWorkerAnswered(result) ? code : kExitOk;
    }
    AddMessage(&chat_, "model", result.samples[0].text);
    const std::vector<uint32_t>& ids = result.samples[0].token_ids;
    chat_.mutable_messages()->rbegin()->mutable_token_ids()->Add(ids.begin(), ids.end());
    if (flags_.json) {
      PrintJson(result.ToJson(), console);
    } else {
      const std::string line =
          absl::StrCat("     [", CacheSentence(result), stopped ? ", stopped]" : "]");
      console.out << "\n";
      PrintDimmed(line, console.out);
    }
    return kExitOk;
  }

  // Prints a line that is not part of an answer. With --json, prints it to `err`, so that `out`
  // contains only JSON objects.
  void Tell(const std::string& text) {
    (flags_.json ? console_->err : console_->out) << text << std::endl;
  }

  void PrintDimmed(const std::string& text, std::ostream& out) const {
    const bool dims = console_->color;
    out << Raw{dims ? "\x1b[2m" : ""} << text << Raw{dims ? "\x1b[0m" : ""} << std::endl;
  }

  const ChatFlags& flags_;
  PeerFlags worker_;  // address of the current worker, one of flags_.workers
  size_t present_ = 0;
  std::unique_ptr<v1::Inference::Stub> stub_;
  Interrupt* const interrupt_;
  Console* const console_;
  const v1::Chat first_;
  v1::Chat chat_;
  absl::Status failure_;  // error of the last call; its message names the worker
  // /save may overwrite this file without a question, because it was loaded or saved before
  std::string file_;
};

int RunChat(const ChatFlags& flags, Console& console) {
  auto first = FirstMessages(flags);
  if (!first.ok()) return Fail(console, first.status());
  Interrupt interrupt;  // created before gRPC starts threads, which inherit the signal mask
  Conversation conversation(flags, *std::move(first), &interrupt, &console);
  if (absl::Status status = conversation.Connect(); !status.ok()) return Fail(console, status);
  conversation.NoteBaseModel();
  constexpr char kPrompt[] = "you> ";
  if (console.terminal && !flags.json) {
    EditedLines lines(kPrompt, &interrupt);
    return conversation.Run([&lines] { return lines.Next(); });
  }
  return conversation.Run([&]() -> std::optional<std::string> {
    console.out << (flags.json ? "" : kPrompt) << std::flush;
    std::string line;
    if (!std::getline(console.in, line)) return std::nullopt;
    return line;
  });
}

}  // namespace

void AddChatCommand(CommandLine* line) {
  const auto [command, flags] =
      line->Add<ChatFlags>("chat", "Hold a conversation; earlier turns are reused from the cache",
                           kChatExamples, RunChat);
  flags->worker.DeclareSeveral(command, &flags->workers);
  command->add_option("--system", flags->system, "the system text");
  command->add_option("--history", flags->history_file,
                      "continue the conversation in this JSON file");
  flags->generation.Declare(command, 512);
  AddJson(command, &flags->json, " per answer, and no \"you>\"");
}

}  // namespace hearth
