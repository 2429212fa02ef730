#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/digest.h"
#include "services/cli/connection.h"
#include "services/hearthctl/ask/answer_file.h"
#include "services/hearthctl/ask/ask_report.h"
#include "services/hearthctl/ask/asked_prompts.h"
#include "services/hearthctl/ask/question_file.h"
#include "services/hearthctl/chat_file.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/generation.h"
#include "services/hearthctl/model_info.h"
#include "services/hearthctl/prompt_flags.h"
#include "services/rpc/status_conversion.h"

namespace hearth {
namespace {

constexpr char kAskExamples[] =
    R"(  hearthctl ask --context handbook.txt --questions questions.jsonl --parallel 4
  hearthctl ask --context handbook.txt --questions questions.jsonl --output answers.jsonl
  hearthctl ask --context-chat chat.json --questions questions.jsonl --json
      (chat.json as in generate; each question is the user's next message)

  {"id": "q1", "question": "Which river?"}      a line of the questions: put into --template
  {"ending": " The river is called"}            goes on where the context ends; or "prompt"
  {"question": "Since when?", "kind": "dates"}  a word that comes back with the answer

The worker computes the context once and keeps it, and answers the questions as it goes. With
--output each answer is a line of that file as soon as it is there: the same command goes on where
it stopped, and asks what failed again. A context or a question that is not what the file answers
is refused, by its sha256, and so is another model. A line, of the file and with --json, has id,
kind, answer, finish_reason, prompt_tokens, cached_tokens, computed_tokens, source_tier, ttft_ms
(from the question's turn to its first token, by the worker's clock), total_ms and token_ids, or
error and error_code; the last line
with --json is the report. Exit code 1 when a question has no answer.
)";

// Between two attempts of a call that a full worker refused; and since any question was answered,
// before the run gives up.
constexpr absl::Duration kLongestWait = absl::Seconds(10);
constexpr absl::Duration kPatience = absl::Minutes(10);

struct AskFlags {
  PeerFlags worker;
  std::string context_file, chat_file, token_ids_file;
  std::string questions_file, output;
  std::string question_template = kDefaultQuestionTemplate;
  GenerationFlags generation;
  uint32_t parallel = 8;
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

// One run of the command: a call for the context, then one for each question that has no answer
// yet, `parallel` at a time on one connection. Thread safety: its threads share what mutex_ guards.
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
  // Until no question begins any more.
  absl::Status TryAll(v1::Inference::Stub* stub, const std::vector<AskedQuestion>& questions);
  // Who answers: an answer file has the answers of one model.
  absl::Status LookAtModel();
  absl::Status KeepContext(v1::Inference::Stub* stub, const v1::PromptInput& shared);
  // `parallel` at a time.
  void ForEach(size_t count, const std::function<void(size_t)>& work) const;
  GenerationResult AskOne(v1::Inference::Stub* stub, absl::StatusOr<v1::PromptInput> prompt);
  // The result of `call` once the worker has room for it, or of a call that would wait too long.
  absl::Status WhenThereIsRoom(const std::function<absl::Status(grpc::ClientContext*)>& call);
  void Take(const AskedQuestion& question, const GenerationResult& answer);
  absl::Status Keep(const AskedQuestion& question, const GenerationResult& answer);
  void Print(const AskedQuestion& question, const GenerationResult& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsStopped() {
    absl::MutexLock lock(&mutex_);
    return !stopped_.ok();
  }
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
  std::string model_;      // of the answers that are kept
  size_t asked_ = 0;       // questions
  uint32_t expected_ = 0;  // tokens that each question is to find; 0: none were kept for them
  absl::Mutex mutex_;
  AskReport report_;                         // written under mutex_
  size_t told_ ABSL_GUARDED_BY(mutex_) = 0;  // questions that have an answer
  absl::Time last_answer_ ABSL_GUARDED_BY(mutex_) = absl::Now();
  bool missed_ ABSL_GUARDED_BY(mutex_) = false;   // a question found less than it was to
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);  // why no question begins any more
};

absl::Status Asker::AskAll(v1::Inference::Stub* stub, const std::vector<AskedQuestion>& questions) {
  asked_ = questions.size();
  const absl::Status status = TryAll(stub, questions);
  absl::MutexLock lock(&mutex_);
  report_.AddUnanswered(static_cast<uint32_t>(asked_ - told_));
  return status.ok() ? stopped_ : status;
}

absl::Status Asker::TryAll(v1::Inference::Stub* stub, const std::vector<AskedQuestion>& questions) {
  if (answers_ != nullptr) {
    const absl::Status same = LookAtModel();
    if (!same.ok()) return same;
  }
  const auto tokenize = [&](const v1::PromptInput& input) -> absl::StatusOr<v1::TokenizeResponse> {
    v1::TokenizeRequest request;
    *request.mutable_prompt() = input;
    v1::TokenizeResponse made;
    const absl::Status asked = WhenThereIsRoom([&](grpc::ClientContext* context) {
      return RpcFailure(stub->Tokenize(context, request, &made), flags_.worker);
    });
    if (!asked.ok()) return asked;
    return made;
  };
  const auto for_each = [this](size_t count, const std::function<void(size_t)>& work) {
    ForEach(count, work);
  };
  const auto prompts = AskedPrompts::Make(context_.prompt, questions, tokenize, for_each);
  if (!prompts.ok()) return prompts.status();
  const bool keeps_context =
      each_.cache() == v1::CACHE_MODE_DEFAULT || each_.cache() == v1::CACHE_MODE_WRITE;
  if (keeps_context && prompts->boundary() > 0) {
    const absl::Status kept = KeepContext(stub, prompts->Shared());
    if (!kept.ok()) return kept;
    if (each_.cache() == v1::CACHE_MODE_DEFAULT) expected_ = prompts->boundary();
  }
  {
    absl::MutexLock lock(&mutex_);
    last_answer_ = absl::Now();  // the context's
  }
  ForEach(questions.size(), [&](size_t number) {
    if (!IsStopped()) Take(questions[number], AskOne(stub, prompts->PromptOf(number)));
  });
  return absl::OkStatus();
}

absl::Status Asker::LookAtModel() {
  const auto model = GetModel(flags_.worker);
  if (!model.ok()) return model.status();
  model_ = ModelName(*model, flags_.generation.adapter());
  return answers_->CheckModel(model_);
}

absl::Status Asker::KeepContext(v1::Inference::Stub* stub, const v1::PromptInput& shared) {
  v1::PrefillRequest request;
  *request.mutable_prompt() = shared;
  request.set_durability(each_.durability());
  request.set_keep_s(each_.keep_s());
  request.set_priority(each_.priority());
  request.set_adapter(each_.adapter());
  v1::PrefillResponse response;
  const absl::Status kept = WhenThereIsRoom([&](grpc::ClientContext* context) {
    const auto reader = stub->Prefill(context, request);
    while (reader->Read(&response)) {
    }
    return RpcFailure(reader->Finish(), flags_.worker);
  });
  if (!kept.ok()) return About("context", kept);
  report_.AddContext(response);
  return absl::OkStatus();
}

void Asker::ForEach(size_t count, const std::function<void(size_t)>& work) const {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min<size_t>(flags_.parallel, count); ++i) {
    threads.emplace_back([&] {
      for (size_t number = next++; number < count; number = next++) work(number);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

GenerationResult Asker::AskOne(v1::Inference::Stub* stub, absl::StatusOr<v1::PromptInput> prompt) {
  GenerationResult result;
  result.status = ToGrpcStatus(prompt.status());
  if (!prompt.ok()) return result;
  v1::GenerateRequest request = each_;
  *request.mutable_prompt() = *std::move(prompt);
  // The context is kept; a question's end is of no use to anybody.
  if (each_.cache() == v1::CACHE_MODE_DEFAULT) request.set_cache(v1::CACHE_MODE_READ);
  if (each_.cache() == v1::CACHE_MODE_WRITE) request.set_cache(v1::CACHE_MODE_OFF);
  GenerationEvents events;
  events.token = [this](const v1::GeneratedToken&) {
    absl::MutexLock lock(&mutex_);
    return !absl::IsCancelled(stopped_);  // nobody reads it
  };
  const absl::Status asked = WhenThereIsRoom([&](grpc::ClientContext* context) {
    result = Generate(stub, request, context, events);
    return result.started.prompt_tokens() > 0 ? absl::OkStatus() : FromGrpcStatus(result.status);
  });
  return result;
}

absl::Status Asker::WhenThereIsRoom(const std::function<absl::Status(grpc::ClientContext*)>& call) {
  while (true) {
    grpc::ClientContext context;
    absl::Status status = call(&context);
    if (!absl::IsResourceExhausted(status)) return status;
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto hint = trailers.find(kRetryAfterMsKey);
    uint32_t wait_ms = kDefaultRetryAfterMs;
    if (hint != trailers.end()) {
      static_cast<void>(
          absl::SimpleAtoi(absl::string_view(hint->second.data(), hint->second.size()), &wait_ms));
    }
    const absl::Duration wait = std::min(absl::Milliseconds(wait_ms), kLongestWait);
    absl::MutexLock lock(&mutex_);
    const auto is_stopped = [this]()
                                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !stopped_.ok(); };
    if (mutex_.AwaitWithTimeout(absl::Condition(&is_stopped), wait)) return status;
    if (absl::Now() - last_answer_ > kPatience) return status;
  }
}

void Asker::Take(const AskedQuestion& question, const GenerationResult& answer) {
  const absl::Status failure = FromGrpcStatus(answer.status);
  absl::MutexLock lock(&mutex_);
  last_answer_ = absl::Now();
  // No other question would be answered either; what has begun is.
  if (absl::IsUnavailable(failure) || absl::IsUnauthenticated(failure) ||
      absl::IsPermissionDenied(failure) || absl::IsResourceExhausted(failure)) {
    stopped_.Update(RpcFailure(answer.status, flags_.worker));
    return;
  }
  ++told_;
  report_.AddAnswer(answer);
  Print(question, answer);
  if (!console_.out) return stopped_.Update(absl::CancelledError("nobody reads the answers"));
  if (answers_ != nullptr && answer.status.ok()) stopped_.Update(Keep(question, answer));
}

absl::Status Asker::Keep(const AskedQuestion& question, const GenerationResult& answer) {
  Json line = AnswerJson(question, answer);
  line["context_sha256"] = context_.sha256;
  line["question_sha256"] = question.sha256;
  line["model"] = model_;
  return answers_->Append(JsonLine(line));
}

void Asker::Print(const AskedQuestion& question, const GenerationResult& answer) {
  const v1::Started& started = answer.started;
  if (answer.status.ok() && started.cached_tokens() < expected_ && !std::exchange(missed_, true)) {
    console_.err << "hearthctl: " << question.id << " found " << started.cached_tokens()
                 << " of the " << expected_
                 << " tokens that were kept for all questions (said once): the "
                 << "worker's --pool-bytes or its store may be too small" << std::endl;
  }
  if (flags_.json) {
    PrintJson(AnswerJson(question, answer), console_);
    return;
  }
  console_.err << "[" << told_ << "/" << asked_ << "] " << question.id << ": ";
  if (!answer.status.ok()) {
    console_.err << "failed: " << answer.status.error_message() << std::endl;
    return;
  }
  console_.err << started.cached_tokens() << " of " << started.prompt_tokens()
               << " prompt tokens cached, first token after " << MsText(answer.finished.ttft_ms())
               << ", " << answer.finished.generated_tokens() << " new tokens in "
               << MsText(answer.finished.total_ms()) << std::endl;
  if (answers_ == nullptr) {
    console_.out << "-- " << question.id << " --\n";
    PrintAnswer(answer.samples[0].text + "\n", console_);
  }
}

void Asker::PrintReport() const {
  if (flags_.json) {
    PrintJson(report_.ToJson(TotalMs()), console_);
  } else {
    console_.out << report_.Text(TotalMs()) << std::flush;
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
