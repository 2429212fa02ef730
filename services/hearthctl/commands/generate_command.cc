#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/cli/connection.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/generation.h"
#include "services/hearthctl/prompt_flags.h"

namespace hearth {
namespace {

constexpr char kGenerateExamples[] =
    R"(  hearthctl generate "Water boils at" --max-new-tokens 16
  hearthctl generate --chat chat.json --temperature 0.7 --seed 1 --max-new-tokens 200
      (chat.json: [{"role": "user", "content": "Hello"}]; a content may also be a list of parts
      {"text": ..., "cache_breakpoint": true})
  hearthctl generate --prompt "Once" --temperature 1 --n 4 --max-new-tokens 32
  hearthctl generate "Once" --generation-config auto --min-p 0.05 --repetition-penalty 1.1
  hearthctl generate "The capital of France is" --beams 4 --max-new-tokens 16
      (the most likely answer that 4 beams find; it is printed when the search ends)
  hearthctl generate --token-ids 2,3,4,5 --breakpoint 4 --max-new-tokens 8 --json --wait-published
With --json the last line is the result: token_ids, text, prompt_tokens, cached_tokens, source_tier,
seed (unless greedy), ttft_ms (from the RPC's start to the first token, measured here), total_ms,
first_logits_sha256, finish_reason, computed_tokens, kv_bytes (at the end), kv_cache (strategy),
exactness, decode_steps, drafted_tokens (guessed), accepted_tokens (guessed right),
load_decision (none, miss, load, compute or abandoned) with load_estimate_ms, compute_estimate_ms,
load_ms and load_source if known; with --logprobs also logprobs, one per token; with
--logits-sha256 also logits_sha256; with --n also samples, each with its token_ids, text and
finish_reason (the fields above are of the first sample); with --beams also beam_score; with
--wait-published also published_tokens and durable. If the environment has TRACEPARENT (W3C Trace
Context), the request continues its trace, and the result has its trace_id.
)";

struct GenerateFlags {
  PeerFlags worker;
  PromptFlags prompt;
  GenerationFlags generation;
  absl::Duration deadline = absl::InfiniteDuration();
  uint32_t samples = 1;
  uint32_t beams = 1;
  float length_penalty = 1;
  bool early_stopping = false;
  bool wait_published = false;
  bool json = false;
};

Json TokenJson(const v1::GeneratedToken& token) {
  Json json;
  json["event"] = "token";
  if (token.sample() > 0) json["sample"] = token.sample();
  json["token_ids"] = std::vector<uint32_t>(token.ids().begin(), token.ids().end());
  json["text"] = token.text();
  for (const auto& logprob : token.logprobs()) json["logprobs"].push_back(MessageJson(logprob));
  for (const auto& top : token.top()) json["top"].push_back(MessageJson(top));
  return json;
}

GenerationEvents JsonEvents(Console& console) {
  GenerationEvents events;
  events.started = [&console](const v1::Started& started) {
    PrintJson({{"event", "started"},
               {"prompt_tokens", started.prompt_tokens()},
               {"cached_tokens", started.cached_tokens()},
               {"source_tier", TierText(started.source_tier())}},
              console);
  };
  events.token = [&console](const v1::GeneratedToken& token) {
    PrintJson(TokenJson(token), console);
    return console.out.good();
  };
  return events;
}

GenerationEvents TextEvents(Console& console, uint32_t samples) {
  GenerationEvents events;
  // the tokens of several answers arrive interleaved, so print the answers at the end
  if (samples > 1) return events;
  events.token = [&console](const v1::GeneratedToken& token) {
    const bool goes_on = PrintAnswer(token.text(), console);
    for (const auto& logprob : token.logprobs()) {
      console.err << "[" << logprob.id() << " " << logprob.logprob() << "]";
    }
    return goes_on;
  };
  return events;
}

void PrintSamples(Console& console, const GenerationResult& result) {
  for (size_t i = 0; i < result.samples.size(); ++i) {
    console.out << (i == 0 ? "" : "\n") << "-- " << i << " --\n";
    PrintAnswer(result.samples[i].text, console);
  }
}

void PrintSummary(Console& console, const GenerationResult& result) {
  console.out << std::endl;
  console.err << "-- " << CacheSentence(result) << ", " << result.finished.generated_tokens()
              << " new tokens in " << MsText(result.total_ms);
  if (result.published) {
    console.err << ", " << result.published->published_tokens() << " tokens stored ("
                << DurabilityText(result.published->durable()) << ")";
    if (!result.published->note().empty()) console.err << ": " << result.published->note();
  }
  console.err << std::endl;
}

void ApplySearch(const GenerateFlags& flags, v1::GenerateRequest* request) {
  request->set_beams(flags.beams);
  if (flags.length_penalty != 1) request->set_length_penalty(flags.length_penalty);
  request->set_early_stopping(flags.early_stopping);
}

double ScoreOf(const GenerationResult& result) {
  return result.finished.samples_size() > 0 ? result.finished.samples(0).beam_score() : 0;
}

int PrintGeneration(const GenerateFlags& flags, const GenerationResult& result, Console& console) {
  if (flags.json) {
    Json json = result.ToJson();
    if (flags.beams > 1) json["beam_score"] = ScoreOf(result);
    return PrintJson(json, console);
  }
  if (flags.samples > 1) PrintSamples(console, result);
  PrintSummary(console, result);
  if (flags.beams > 1) {
    console.err << "-- score " << ScoreOf(result) << ", the best of " << flags.beams << " beams"
                << std::endl;
  }
  return kExitOk;
}

int RunGenerate(const GenerateFlags& flags, Console& console) {
  if (flags.deadline == absl::ZeroDuration()) {
    return FailUsage(console,
                     "--deadline: must be above 0; got 0 (leave the flag out for no deadline)");
  }
  v1::GenerateRequest request;
  auto prompt = flags.prompt.Build();
  if (!prompt.ok()) return Fail(console, prompt.status());
  *request.mutable_prompt() = *std::move(prompt);
  flags.generation.Apply(&request);
  request.set_wait_published(flags.wait_published);
  request.set_n(flags.samples);
  ApplySearch(flags, &request);
  auto channel = Connect(flags.worker);
  if (!channel.ok()) return Fail(console, channel.status());
  auto stub = v1::Inference::NewStub(*channel);
  grpc::ClientContext context;
  if (flags.deadline != absl::InfiniteDuration()) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + flags.deadline));
  }
  ProgressLine progress(&console);
  const GenerationResult result =
      Generate(stub.get(), request, &context,
               flags.json ? JsonEvents(console) : TextEvents(console, flags.samples), &progress);
  if (result.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return Fail(console,
                absl::DeadlineExceededError(absl::StrCat(
                    "the answer was not complete after ", absl::FormatDuration(flags.deadline),
                    " (--deadline): raise it, or ask for fewer tokens")));
  }
  if (!result.status.ok()) return Fail(console, RpcFailure(result.status, flags.worker));
  return PrintGeneration(flags, result, console);
}

}  // namespace

void AddGenerateCommand(CommandLine* line) {
  const auto [command, flags] =
      line->Add<GenerateFlags>("generate", "Answer one prompt", kGenerateExamples, RunGenerate);
  flags->worker.Declare(command);
  flags->prompt.Declare(command);
  flags->generation.Declare(command, 128);
  command->add_option("--n", flags->samples, "number of answers to the prompt, 1 to 16")
      ->check(CLI::Range(1.0, 16.0))
      ->capture_default_str();
  command
      ->add_option("--beams", flags->beams,
                   "search for the most likely answer with this number of beams, 1 to 16; printed "
                   "at the end")
      ->check(CLI::Range(1.0, 16.0))
      ->capture_default_str();
  command
      ->add_option("--length-penalty", flags->length_penalty,
                   "with --beams: divide scores by the number of tokens to this power")
      ->capture_default_str();
  command->add_flag("--early-stopping", flags->early_stopping,
                    "with --beams: end once there are as many complete answers as beams");
  AddDuration(
      command, "--deadline", [to = flags](absl::Duration given) { to->deadline = given; },
      "give up after this long: 30s, 500ms");
  command->add_flag("--wait-published", flags->wait_published,
                    "wait until the prefix is stored, and print how many tokens were");
  AddJson(command, &flags->json, " per line, the result last");
}

}  // namespace hearth
