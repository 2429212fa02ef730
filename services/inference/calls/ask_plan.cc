#include "services/inference/calls/ask_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

absl::Status CheckQuestion(const v1::Question& question, int number) {
  const auto bad = [number](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("questions[", number, "].", why));
  };
  if (question.id().size() > kMaxQuestionIdBytes) {
    return bad(
        absl::StrCat("id: ", question.id().size(), " bytes; the limit is ", kMaxQuestionIdBytes));
  }
  const bool empty = question.text().empty() && question.token_ids().ids().empty();
  return empty ? bad("ending: neither text nor token_ids has anything") : absl::OkStatus();
}

absl::Status CheckEach(const v1::GenerateRequest& each) {
  std::string field;
  if (each.has_prompt()) field = "prompt";
  if (each.wait_published()) field = "wait_published";
  if (each.hash_logits()) field = "hash_logits";
  if (each.report_progress()) field = "report_progress";
  if (each.sampling().report_logprobs() || each.sampling().logprobs() > 0) field = "logprobs";
  if (each.n() > 1) field = "n";
  if (field.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("each.", field, ": not possible with Ask"));
}

void AddToChat(const std::string& text, v1::Chat* chat) {
  const int messages = chat->messages_size();
  v1::ChatMessage* last = messages == 0 ? nullptr : chat->mutable_messages(messages - 1);
  if (last != nullptr && !last->parts().empty()) {
    last->mutable_parts(last->parts_size() - 1)->set_cache_breakpoint(true);
  }
  if (last == nullptr || last->role() != "user") {
    last = chat->add_messages();
    last->set_role("user");
  }
  last->add_parts()->set_text(text);
}

}  // namespace

absl::Status CheckAsk(const v1::AskRequest& request) {
  const v1::PromptInput& context = request.context();
  if (context.text().empty() && context.token_ids().ids().empty() &&
      context.chat().messages().empty()) {
    return absl::InvalidArgumentError("context: none of text, token_ids and chat has anything");
  }
  if (context.chat().omit_generation_prompt()) {
    return absl::InvalidArgumentError(
        "context.chat.omit_generation_prompt: the question after it asks for an answer");
  }
  const int questions = request.questions_size();
  if (questions < 1 || questions > kMaxQuestions) {
    return absl::InvalidArgumentError(
        absl::StrCat("questions: ", questions, "; 1 to ", kMaxQuestions, " are possible"));
  }
  if (request.parallel() > kMaxParallelQuestions) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel: ", request.parallel(), "; the limit is ", kMaxParallelQuestions));
  }
  for (int i = 0; i < questions; ++i) {
    const absl::Status status = CheckQuestion(request.questions(i), i);
    if (!status.ok()) return status;
  }
  return CheckEach(request.each());
}

absl::StatusOr<v1::PromptInput> AskPlan::PromptOf(uint32_t question) const {
  const v1::Question& asked = request.questions(static_cast<int>(question));
  v1::PromptInput prompt = request.context();
  if (asked.has_token_ids() != prompt.has_token_ids()) {
    return absl::InvalidArgumentError(
        asked.has_token_ids() ? "token_ids: the context has none, so this is to be a text"
                              : "text: the context has token_ids, so this is to have them too");
  }
  if (prompt.has_chat()) {
    AddToChat(asked.text(), prompt.mutable_chat());
  } else if (prompt.has_text()) {
    prompt.add_breakpoints(static_cast<uint32_t>(prompt.text().size()));
    prompt.mutable_text()->append(asked.text());
  } else {
    prompt.add_breakpoints(static_cast<uint32_t>(prompt.token_ids().ids_size()));
    prompt.mutable_token_ids()->mutable_ids()->MergeFrom(asked.token_ids().ids());
  }
  return prompt;
}

uint64_t AskPlan::BytesOf(uint32_t question) const {
  return request.context().ByteSizeLong() +
         request.questions(static_cast<int>(question)).ByteSizeLong();
}

EngineRequest AskPlan::ContextRequest(const Prompt& prompt) const {
  EngineRequest context = each;
  context.max_new_tokens = 0;
  context.sampling = SamplingParams();
  context.search = BeamOptions();
  for (const uint32_t boundary : prompt.breakpoints) {
    if (boundary < prompt.token_ids.size()) context.breakpoints.push_back(boundary);
  }
  const uint32_t shared = context.breakpoints.empty() ? 0 : context.breakpoints.back();
  context.token_ids.assign(prompt.token_ids.begin(), prompt.token_ids.begin() + shared);
  return context;
}

EngineRequest AskPlan::QuestionRequest(Prompt prompt) const {
  EngineRequest question = each;
  question.token_ids = std::move(prompt.token_ids);
  question.breakpoints = std::move(prompt.breakpoints);
  // The context is kept; a question's end is of no use to anybody.
  if (each.cache == CacheMode::kDefault) question.cache = CacheMode::kRead;
  if (each.cache == CacheMode::kWrite) question.cache = CacheMode::kOff;
  return question;
}

}  // namespace hearth
