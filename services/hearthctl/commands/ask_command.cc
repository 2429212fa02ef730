#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/digest.h"
#include "services/cli/connection.h"
#include "services/hearthctl/ask/answer_file.h"
#include "services/hearthctl/ask/ask_report.h"
#include "services/hearthctl/ask/question_file.h"
#include "services/hearthctl/chat_file.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/generation.h"
#include "services/hearthctl/model_info.h"
#include "services/hearthctl/prompt_flags.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

constexpr char kAskExamples[] =
    R"(  hearthctl ask --context handbook.txt --questions questions.jsonl --parallel 4
  hearthctl ask --context handbook.txt --questions questions.jsonl --output answers.jsonl
  hearthctl ask --context-chat chat.json --questions questions.jsonl --json
      (chat.json as in generate; each question is the user's next message)

  {"id": "q1", "question": "Which river?"}      a line of the questions: put into --template
  {"ending": " The river is called"}            goes on where the context ends; or "prompt"
  {"question": "Since when?", "kind": "dates"}  the report has a row for each kind

The worker computes the context once and keeps it, and answers the questions as it goes. With
--output each answer is a line of that file as soon as it is there: the same command goes on where
it stopped, and asks what failed again. A context or a question that is not what the file answers
is refused, by its sha256, and so is another model. A line, of the file and with --json, has id,
kind, answer, finish_reason, prompt_tokens, cached_tokens, computed_tokens, source_tier, ttft_ms
(from the question's turn to its first token, by the worker's clock), total_ms and token_ids, or
error and error_code; the last line
with --json is the report. Exit code 1 when a question has no answer.
)";

// Beside its ending, what a question has on the wire at most.
constexpr size_t kQuestionOverheadBytes = 32;
constexpr size_t kMaxQuestionsACall = 1024;

struct AskFlags {
  PeerFlags worker;
  std::string context_file, chat_file, token_ids_file;
  std::string questions_file, output;
  std::string question_template = kDefaultQuestionTemplate;
  GenerationFlags generation;
  uint32_t parallel = 4;
  bool json = false;
};

// The context of the questions, and the digest of its file.
struct AskedContext {
  v1::PromptInput prompt;
  std::string sha256;
};

const std::string& ContextPath(const AskFlags& flags) {
  if (!flags.context_file.empty()) return flags.context_file;
  return flags.chat_file.empty() ? flags.token_ids_file : flags.chat_file;
}

absl::StatusOr<AskedContext> ReadContext(const AskFlags& flags) {
  const std::string& path = ContextPath(flags);
  auto text = ReadTextFile(path);
  if (!text.ok()) return text.status();
  AskedContext context;
  context.sha256 = DigestHex(Sha256(*text));
  if (!flags.context_file.empty()) {
    context.prompt.set_text(*std::move(text));
    return context;
  }
  absl::Status read;
  if (!flags.chat_file.empty()) {
    auto chat = ParseChat(*text);
    read = chat.status();
    if (chat.ok()) *context.prompt.mutable_chat() = *std::move(chat);
  } else {
    auto ids = ParseTokenIds(*text);
    read = ids.status();
    if (ids.ok()) context.prompt.mutable_token_ids()->mutable_ids()->Add(ids->begin(), ids->end());
  }
  if (read.ok()) return context;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", read.message()));
}

absl::StatusOr<std::vector<AskedQuestion>> ReadQuestions(const AskFlags& flags,
                                                         const v1::GenerateRequest& each) {
  auto text = ReadTextFile(flags.questions_file);
  if (!text.ok()) return text.status();
  // A chat's question is a message as it is.
  const std::string& put = flags.chat_file.empty() ? flags.question_template : kQuestionPlace;
  auto questions = ParseQuestions(*text, put, each);
  if (questions.ok()) return questions;
  return absl::InvalidArgumentError(
      absl::StrCat(flags.questions_file, ": ", questions.status().message()));
}

// One run of the command: the questions that have no answer yet, a call of as many as fit at a
// time.
class Asker {
 public:
  Asker(const AskFlags& flags, AskedContext context, v1::GenerateRequest each, AnswerFile* answers,
        Console& console)
      : flags_(flags),
        context_(std::move(context)),
        each_(std::move(each)),
        answers_(answers),
        console_(console) {}

  // Asks them all; the error is what kept it from going on.
  absl::Status AskAll(v1::Inference::Stub* stub, const std::vector<AskedQuestion>& questions);
  void PrintReport() const;
  AskReport* report() { return &report_; }

 private:
  v1::AskRequest Request(const std::vector<AskedQuestion>& questions, size_t first) const;
  // Who answers now: an answer file has the answers of one model.
  absl::Status LookAtModel();
  absl::Status Call(v1::Inference::Stub* stub, const AskedQuestion* questions,
                    const v1::AskRequest& request);
  absl::Status Take(const AskedQuestion& question, const v1::Answer& answer);
  void Print(const AskedQuestion& question, const v1::Answer& answer);
  double TotalMs() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

  const AskFlags& flags_;
  const AskedContext context_;
  const v1::GenerateRequest each_;
  AnswerFile* const answers_;  // null: none are kept
  Console& console_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  AskReport report_;
  std::string model_;  // of the answers that are kept
  size_t asked_ = 0, told_ = 0;
};

v1::AskRequest Asker::Request(const std::vector<AskedQuestion>& questions, size_t first) const {
  v1::AskRequest request;
  *request.mutable_context() = context_.prompt;
  *request.mutable_each() = each_;
  request.set_parallel(flags_.parallel);
  size_t bytes = request.ByteSizeLong();
  for (size_t i = first; i < questions.size() && i - first < kMaxQuestionsACall; ++i) {
    bytes += questions[i].question.ByteSizeLong() + kQuestionOverheadBytes;
    if (bytes > kMaxMessageBytes && i > first) break;
    *request.add_questions() = questions[i].question;
  }
  return request;
}

absl::Status Asker::AskAll(v1::Inference::Stub* stub, const std::vector<AskedQuestion>& questions) {
  asked_ = questions.size();
  absl::Status status;
  for (size_t first = 0; first < questions.size() && status.ok();) {
    const v1::AskRequest request = Request(questions, first);
    if (answers_ != nullptr) status = LookAtModel();
    if (status.ok()) status = Call(stub, &questions[first], request);
    first += static_cast<size_t>(request.questions_size());
  }
  report_.AddUnanswered(static_cast<uint32_t>(asked_ - told_));
  return status;
}

absl::Status Asker::LookAtModel() {
  const auto model = GetModel(flags_.worker);
  if (!model.ok()) return model.status();
  const std::string before = std::exchange(model_, ModelName(*model, flags_.generation.adapter()));
  if (!before.empty() && before != model_) {
    return absl::FailedPreconditionError(absl::StrCat(
        flags_.output, ": the worker has another model by now (", model_, ", not ", before, ")"));
  }
  return answers_->CheckModel(model_);
}

absl::Status Asker::Call(v1::Inference::Stub* stub, const AskedQuestion* questions,
                         const v1::AskRequest& request) {
  grpc::ClientContext context;
  const auto reader = stub->Ask(&context, request);
  absl::Status taken;
  v1::AskResponse response;
  while (taken.ok() && reader->Read(&response)) {
    if (response.has_context()) report_.AddContext(response.context());
    if (!response.has_answer()) continue;
    if (response.answer().question() >= static_cast<uint32_t>(request.questions_size())) {
      taken = absl::DataLossError("the worker answered a question that was not asked");
    } else {
      taken = Take(questions[response.answer().question()], response.answer());
    }
  }
  if (!taken.ok()) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!taken.ok()) return taken;
  return status.ok() ? absl::OkStatus() : RpcFailure(status, flags_.worker);
}

absl::Status Asker::Take(const AskedQuestion& question, const v1::Answer& answer) {
  ++told_;
  report_.AddAnswer(question.kind, answer);
  Print(question, answer);
  if (!console_.out) return absl::CancelledError("nobody reads the answers");
  if (answers_ == nullptr || answer.error_code() != 0) return absl::OkStatus();
  Json line = AnswerJson(question.kind, answer);
  line["context_sha256"] = context_.sha256;
  line["question_sha256"] = question.sha256;
  line["model"] = model_;
  return answers_->Append(JsonLine(line));
}

void Asker::Print(const AskedQuestion& question, const v1::Answer& answer) {
  if (flags_.json) {
    PrintJson(AnswerJson(question.kind, answer), console_);
    return;
  }
  console_.err << "[" << told_ << "/" << asked_ << "] " << answer.id() << ": ";
  if (answer.error_code() != 0) {
    console_.err << "failed: " << answer.error() << std::endl;
    return;
  }
  console_.err << answer.started().cached_tokens() << " of " << answer.started().prompt_tokens()
               << " prompt tokens cached, first token after " << MsText(answer.finished().ttft_ms())
               << ", " << answer.finished().generated_tokens() << " new tokens in "
               << MsText(answer.finished().total_ms()) << std::endl;
  if (answers_ == nullptr) {
    console_.out << "-- " << answer.id() << " --\n";
    PrintAnswer(answer.text() + "\n", console_);
  }
}

void Asker::PrintReport() const {
  if (flags_.json) {
    PrintJson(report_.ToJson(TotalMs()), console_);
  } else {
    console_.out << report_.Table(TotalMs()) << std::flush;
  }
}

int RunAsk(const AskFlags& flags, Console& console) {
  v1::GenerateRequest each;
  absl::Status status = flags.generation.Check();
  if (status.ok()) status = CheckUtf8(flags.question_template, "--template");
  if (!status.ok()) return Fail(console, status);
  if (flags.question_template.find(kQuestionPlace) == std::string::npos) {
    return FailUsage(console, absl::StrCat("--template: has no ", kQuestionPlace));
  }
  flags.generation.Apply(&each);
  auto context = ReadContext(flags);
  if (!context.ok()) return Fail(console, context.status());
  auto questions = ReadQuestions(flags, each);
  if (!questions.ok()) return Fail(console, questions.status());
  std::unique_ptr<AnswerFile> answers;
  if (!flags.output.empty()) {
    auto opened =
        AnswerFile::Open(flags.output, context->sha256, {ContextPath(flags), flags.questions_file});
    if (!opened.ok()) return Fail(console, opened.status());
    answers = *std::move(opened);
  }
  Asker asker(flags, *std::move(context), std::move(each), answers.get(), console);
  std::vector<AskedQuestion> open;
  for (AskedQuestion& question : *questions) {
    const absl::StatusOr<bool> has =
        answers == nullptr ? absl::StatusOr<bool>(false) : answers->Has(question);
    if (!has.ok()) return Fail(console, has.status());
    if (*has) {
      asker.report()->AddAnswered();
    } else {
      open.push_back(std::move(question));
    }
  }
  if (!open.empty()) {
    auto channel = Connect(flags.worker);
    if (!channel.ok()) return Fail(console, channel.status());
    status = asker.AskAll(v1::Inference::NewStub(*channel).get(), open);
  }
  asker.PrintReport();
  if (!status.ok()) return Fail(console, status);
  return asker.report()->complete() ? kExitOk : kExitFailed;
}

}  // namespace

void AddAskCommand(CommandSet* commands) {
  const auto [command, flags] = commands->Add<AskFlags>(
      "ask", "Answer many questions about one context", kAskExamples, RunAsk);
  flags->worker.Declare(command);
  CommandFlags group = command->AddOneOf("context", "What the questions are about");
  group.Add("--context", &flags->context_file, "a file of text");
  group.Add("--context-chat", &flags->chat_file, "a chat's JSON file, as generate takes it");
  group.Add("--context-token-ids", &flags->token_ids_file, "a file of token ids");
  command->Add("--questions", &flags->questions_file, "a JSON object a line; - is standard input")
      .Required();
  command->Add("--output", &flags->output, "the file that answers are added to, a JSON line each");
  command
      ->Add("--template", &flags->question_template,
            "what a question becomes; the default is an empty line, \"Question: {question}\" and "
            "\"Answer:\"")
      .Placeholder("TEXT");
  command->Add("--parallel", &flags->parallel, "questions under way at a time, at most 64")
      .Between(1, 64)
      .ShowDefault();
  flags->generation.DeclareAnswer(command, 128);
  command->AddJson(&flags->json, " an answer, the report last");
}

}  // namespace hearth
