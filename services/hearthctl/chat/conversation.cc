#include "services/hearthctl/chat/conversation.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/hearthctl/chat_file.h"
#include "services/hearthctl/new_file.h"

namespace hearth {
namespace {

constexpr char kCommands[] =
    "/help          this list\n"
    "/clear         forget the conversation, but for the system text (also /reset)\n"
    "/save FILE     write the conversation, as chat --history takes it\n"
    "/load FILE     go on with a conversation that was saved\n"
    "/exit          leave, as Ctrl-C and Ctrl-D do\n"
    "Keys: arrows, Home, End; Up and Ctrl-R for earlier lines; Ctrl-C stops an answer.\n"
    "What is pasted is one turn, whatever line ends it has.";

// "/save" of "/save FILE"; empty: the line is a question. "/etc/passwd is what?" is one.
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

}  // namespace

Conversation::Conversation(const GenerationFlags& generation, bool json, PeerFlags worker,
                           std::vector<std::string> workers, Interrupt* interrupt, Console* console,
                           v1::Chat first, std::string file)
    : generation_(generation),
      json_(json),
      worker_(std::move(worker)),
      workers_(std::move(workers)),
      interrupt_(interrupt),
      console_(console),
      first_(std::move(first)),
      chat_(first_),
      file_(std::move(file)) {
  assert(!workers_.empty());
}

absl::Status Conversation::Connect() {
  absl::Status failure;
  for (size_t tried = 0; tried < workers_.size(); ++tried) {
    worker_.address = workers_[present_];
    auto channel = hearth::Connect(worker_);
    if (channel.ok()) {
      stub_ = v1::Inference::NewStub(*channel);
      return absl::OkStatus();
    }
    failure = failure.ok()
                  ? channel.status()
                  : NotReached(absl::StrCat(failure.message(), "; ", channel.status().message()));
    if (!absl::IsUnavailable(channel.status())) return failure;
    present_ = (present_ + 1) % workers_.size();
  }
  return failure;
}

int Conversation::Run(LineSource* lines) {
  Console& console = *console_;
  while (const std::optional<std::string> line = lines->Next()) {
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
  if (!json_) console.out << std::endl;
  return kExitOk;
}

bool Conversation::Command(const std::string& line) {
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
    Tell(absl::StrCat("there is no ", word, "; /help lists what there is"));
  }
  return true;
}

void Conversation::Save(const std::string& path) {
  auto file = NewFile::Create(path, /*replaces=*/path == file_);
  absl::Status status = file.ok() ? (*file)->WriteAt(0, ChatText(chat_)) : file.status();
  if (status.ok()) status = (*file)->Commit();
  if (absl::IsAlreadyExists(status)) {
    status = absl::AlreadyExistsError(absl::StrCat(path, " exists: name another file"));
  }
  if (!status.ok()) {
    Fail(*console_, status);
    return;
  }
  file_ = path;
  Tell(absl::StrCat("saved ", chat_.messages_size(), " messages to ", path));
}

void Conversation::Load(const std::string& path) {
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

int Conversation::Answer(const std::string& text) {
  AddMessage(&chat_, "user", text);
  v1::GenerateRequest request;
  *request.mutable_prompt()->mutable_chat() = chat_;
  generation_.Apply(&request);
  GenerationResult result = Ask(request);
  // One that is gone is left for the next, whose answer begins again.
  for (size_t asked = 1; asked < workers_.size() && NoWorkerAnswered(result); ++asked) {
    present_ = (present_ + 1) % workers_.size();
    if (!Connect().ok()) break;
    if (!result.samples[0].text.empty()) console_->out << std::endl;
    PrintDimmed(absl::StrCat("[", failure_.message(), "; asking ", worker_.address, "]"),
                console_->err);
    result = Ask(request);
  }
  return Finish(result);
}

GenerationResult Conversation::Ask(const v1::GenerateRequest& request) {
  GenerationEvents events;
  bool first = true;
  if (!json_) {
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

// A stopped answer stays in the history as far as it came; a refused question leaves it.
int Conversation::Finish(const GenerationResult& result) {
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
  if (json_) {
    PrintJson(result.ToJson(), console);
  } else {
    const std::string line =
        absl::StrCat("     [", CacheSentence(result), stopped ? ", stopped]" : "]");
    console.out << "\n";
    PrintDimmed(line, console.out);
  }
  return kExitOk;
}

// Of lines that are no answer: with --json they are not among the objects.
void Conversation::Tell(const std::string& text) {
  (json_ ? console_->err : console_->out) << text << std::endl;
}

void Conversation::PrintDimmed(const std::string& text, std::ostream& out) const {
  const bool dims = console_->color;
  out << Raw{dims ? "\x1b[2m" : ""} << text << Raw{dims ? "\x1b[0m" : ""} << std::endl;
}

}  // namespace hearth
