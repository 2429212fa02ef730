#include "services/hearthctl/generation.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/cli/command_line.h"
#include "services/hearthctl/chat_file.h"
#include "services/rpc/call_metadata.h"

namespace hearth {
namespace {

const std::map<std::string, int> kCacheModes = {{"default", v1::CACHE_MODE_DEFAULT},
                                                {"read", v1::CACHE_MODE_READ},
                                                {"write", v1::CACHE_MODE_WRITE},
                                                {"off", v1::CACHE_MODE_OFF}};
const std::map<std::string, int> kDurabilities = {{"default", v1::DURABILITY_DEFAULT},
                                                  {"memory", v1::DURABILITY_MEMORY},
                                                  {"disk", v1::DURABILITY_DISK},
                                                  {"sync", v1::DURABILITY_SYNC},
                                                  {"shared", v1::DURABILITY_SHARED}};

// More than any worker gives: a higher number is broken.
constexpr uint32_t kMaxSamples = 1024;

void AddToken(const v1::GeneratedToken& token, GeneratedSample* sample) {
  sample->token_ids.insert(sample->token_ids.end(), token.ids().begin(), token.ids().end());
  sample->text += token.text();
  sample->logprobs.insert(sample->logprobs.end(), token.logprobs().begin(), token.logprobs().end());
}

void AddLogprobs(const GeneratedSample& sample, Json* json) {
  for (const v1::TokenLogprob& logprob : sample.logprobs) {
    (*json)["logprobs"].push_back(logprob.logprob());
  }
}

void AddLogitsDigest(const v1::SampleEnd& end, Json* json) {
  if (!end.logits_sha256().empty()) (*json)["logits_sha256"] = HexText(end.logits_sha256());
}

// "5=-1.5"; nullopt: it is none.
std::optional<std::pair<uint32_t, float>> BiasFrom(const std::string& text) {
  const size_t equals = text.find('=');
  std::pair<uint32_t, float> bias;
  if (equals == text.npos || !absl::SimpleAtoi(text.substr(0, equals), &bias.first) ||
      !absl::SimpleAtof(text.substr(equals + 1), &bias.second)) {
    return std::nullopt;
  }
  return bias;
}

double MsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

std::string FinishReasonText(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_EOS:
      return "eos";
    case v1::FINISH_REASON_STOP:
      return "stop";
    default:
      return "unknown";
  }
}

void GenerationFlags::DeclareEnd(CommandFlags* command, uint32_t default_max_new_tokens) {
  max_new_tokens_ = default_max_new_tokens;
  command->Add("--max-new-tokens", &max_new_tokens_, "most tokens to generate").ShowDefault();
  command->Add("--stop", &stop_, "end at this text; may be repeated").OneValueEach();
  command->AddSwitch("--ignore-eos", &ignore_eos_, "go on past the model's end of text");
}

void GenerationFlags::Declare(CommandFlags* command, uint32_t default_max_new_tokens) {
  DeclareEnd(command, default_max_new_tokens);
  command->AddChoice(
      "--generation-config", {{"none", 0}, {"auto", 1}},
      [this](int choice) { server_defaults_ = choice == 1; },
      "auto: temperature, top-k and top-p are the model's own where they are not given (see "
      "hearthctl model); none (the default): greedy");
  command->Add("--temperature", &temperature_, "0 is greedy (the default)");
  command->Add("--top-k", &top_k_, "sample from the k likeliest; 0 is off");
  command->Add("--top-p", &top_p_, "sample from the likeliest that sum to p; 0 is off");
  command->Add("--seed", &seed_, "the same seed gives the same answer; without one it is drawn");
  DeclareRules(command);
  DeclareAdapter(command, &adapter_);
  command->AddChoice(
      "--cache", kCacheModes, [this](int mode) { cache_ = static_cast<v1::CacheMode>(mode); },
      "default, read, write or off");
  command->Add("--kv-cache", &kv_cache_,
               "keep keys and values by this strategy, as hearth-worker --kv-cache has it");
  command->Add("--kv-quantization", &kv_quantization_,
               "options of the strategy quantized, as hearth-worker has them");
  command->Add("--speculate", &speculate_,
               "tokens guessed from the text for one step to verify; 0 is off");
  command->AddChoice(
      "--durability", kDurabilities,
      [this](int level) { durability_ = static_cast<v1::Durability>(level); },
      "of what is published: memory, disk or sync");
  hint_.Declare(command);
  command->Add("--logprobs", &logprobs_, "report log probabilities and N alternatives");
  command->AddSwitch("--logits-sha256", &hash_logits_,
                     "report a SHA-256 of all tokens' logits, not of the first one's alone");
}

void GenerationFlags::DeclareRules(CommandFlags* command) {
  command->Add("--min-p", &min_p_,
               "sample none that is less than p times as likely as the likeliest");
  command->Add("--repetition-penalty", &repetition_penalty_,
               "divide logits of tokens that stand in prompt or answer; 1 is off");
  command->Add("--presence-penalty", &presence_penalty_,
               "take this off the logits of tokens that stand in the answer");
  command->Add("--frequency-penalty", &frequency_penalty_, "likewise, each time that they do");
  command->Add("--logit-bias", &logit_bias_, "ID=BIAS: add to a token's logit; may be repeated")
      .OneValueEach();
  command->Add("--stop-token-id", &stop_token_ids_, "end before this token; may be repeated")
      .OneValueEach();
  command->Add("--bad-token-id", &bad_token_ids_, "never draw this token; may be repeated")
      .OneValueEach();
  command->Add("--min-tokens", &min_tokens_, "do not end before so many tokens");
}

absl::Status GenerationFlags::Check() const {
  for (const std::string& bias : logit_bias_) {
    if (!BiasFrom(bias).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--logit-bias: ", bias, " is no token id, \"=\" and number"));
    }
  }
  for (size_t i = 0; i < stop_.size(); ++i) {
    const std::string what = absl::StrCat("--stop number ", i + 1);
    if (absl::Status status = CheckUtf8(stop_[i], what); !status.ok()) return status;
  }
  if (absl::Status status = CheckUtf8(adapter_, "--adapter"); !status.ok()) return status;
  if (absl::Status status = CheckUtf8(kv_cache_, "--kv-cache"); !status.ok()) return status;
  return CheckUtf8(kv_quantization_, "--kv-quantization");
}

void GenerationFlags::ApplyEnd(v1::GenerateRequest* request) const {
  request->set_max_new_tokens(max_new_tokens_);
  for (const std::string& stop : stop_) request->add_stop(stop);
  request->set_ignore_eos(ignore_eos_);
}

void GenerationFlags::ApplyRules(v1::SamplingParams* sampling) const {
  sampling->set_min_p(min_p_);
  if (repetition_penalty_ != 1) sampling->set_repetition_penalty(repetition_penalty_);
  sampling->set_presence_penalty(presence_penalty_);
  sampling->set_frequency_penalty(frequency_penalty_);
  for (const std::string& text : logit_bias_) {
    if (const auto bias = BiasFrom(text))
      (*sampling->mutable_logit_bias())[bias->first] = bias->second;
  }
  sampling->mutable_stop_token_ids()->Add(stop_token_ids_.begin(), stop_token_ids_.end());
  sampling->mutable_bad_token_ids()->Add(bad_token_ids_.begin(), bad_token_ids_.end());
  sampling->set_min_tokens(min_tokens_);
}

void GenerationFlags::Apply(v1::GenerateRequest* request) const {
  ApplyEnd(request);
  v1::SamplingParams* sampling = request->mutable_sampling();
  sampling->set_server_defaults(server_defaults_);
  if (temperature_) sampling->set_temperature(*temperature_);
  if (top_k_) sampling->set_top_k(*top_k_);
  if (top_p_) sampling->set_top_p(*top_p_);
  if (seed_) sampling->set_seed(*seed_);
  ApplyRules(sampling);
  if (logprobs_ >= 0) {
    sampling->set_report_logprobs(true);
    sampling->set_logprobs(static_cast<uint32_t>(logprobs_));
  }
  request->set_hash_logits(hash_logits_);
  request->set_cache(cache_);
  request->set_adapter(adapter_);
  request->set_kv_cache(kv_cache_);
  request->set_kv_quantization(kv_quantization_);
  if (speculate_ >= 0) request->set_speculate(static_cast<uint32_t>(speculate_));
  request->set_durability(durability_);
  request->set_keep_s(hint_.Value().keep_s);
  request->set_priority(hint_.Value().priority);
}

GenerationResult Generate(v1::Inference::Stub* stub, v1::GenerateRequest request,
                          grpc::ClientContext* context, const GenerationEvents& events,
                          ProgressLine* progress) {
  GenerationResult result;
  request.set_report_progress(progress != nullptr && progress->is_seen());
  result.request_id = NewRequestId();
  SendRequestId(result.request_id, context);
  bool first = true;
  const auto start = std::chrono::steady_clock::now();
  auto reader = stub->Generate(context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_progress()) {
      if (progress == nullptr) continue;
      progress->Show(response.progress().ready_tokens(), result.started.prompt_tokens());
      continue;
    }
    if (progress != nullptr && !response.has_started()) progress->Clear();
    if (response.has_started()) {
      result.started = response.started();
      if (events.started) events.started(result.started);
    } else if (response.has_token()) {
      const v1::GeneratedToken& token = response.token();
      if (first) result.ttft_ms = MsSince(start);
      first = false;
      if (token.sample() >= kMaxSamples) continue;
      result.samples.resize(std::max<size_t>(result.samples.size(), token.sample() + 1));
      AddToken(token, &result.samples[token.sample()]);
      if (events.token && !events.token(token)) context->TryCancel();
    } else if (response.has_finished()) {
      result.total_ms = MsSince(start);
      result.finished = response.finished();
    } else if (response.has_published()) {
      result.published = response.published();
    }
  }
  result.status = reader->Finish();
  if (progress != nullptr) progress->Clear();
  return result;
}

Json GenerationResult::ToJson() const {
  Json json{{"request_id", request_id},
            {"token_ids", samples[0].token_ids},
            {"text", samples[0].text},
            {"prompt_tokens", started.prompt_tokens()},
            {"cached_tokens", started.cached_tokens()},
            {"matched_tokens", started.matched_tokens()},
            {"source_tier", TierText(started.source_tier())}};
  if (started.has_load()) {
    const v1::Load& load = started.load();
    json["load_decision"] = load.decision();
    if (load.has_load_estimate_ms()) json["load_estimate_ms"] = load.load_estimate_ms();
    if (load.has_compute_estimate_ms()) json["compute_estimate_ms"] = load.compute_estimate_ms();
    if (load.took_ms() > 0) json["load_ms"] = load.took_ms();
    if (!load.source().empty()) json["load_source"] = load.source();
  }
  if (started.has_seed()) json["seed"] = started.seed();
  json["ttft_ms"] = ttft_ms;
  json["total_ms"] = total_ms;
  json["first_logits_sha256"] = HexText(finished.first_logits_sha256());
  json["finish_reason"] = FinishReasonText(finished.reason());
  json["generated_tokens"] = finished.generated_tokens();
  json["computed_tokens"] = finished.computed_tokens();
  json["kv_bytes"] = finished.kv_bytes();
  json["kv_cache"] = finished.kv_cache();
  json["exactness"] = finished.exactness();
  json["decode_steps"] = finished.decode_steps();
  json["drafted_tokens"] = finished.drafted_tokens();
  json["accepted_tokens"] = finished.accepted_tokens();
  AddLogprobs(samples[0], &json);
  if (finished.samples_size() > 0) AddLogitsDigest(finished.samples(0), &json);
  for (int i = 0; finished.samples_size() > 1 && i < finished.samples_size(); ++i) {
    const size_t number = static_cast<size_t>(i);
    const GeneratedSample none;
    const GeneratedSample& sample = number < samples.size() ? samples[number] : none;
    Json one{{"token_ids", sample.token_ids},
             {"text", sample.text},
             {"finish_reason", FinishReasonText(finished.samples(i).reason())},
             {"generated_tokens", finished.samples(i).generated_tokens()}};
    AddLogprobs(sample, &one);
    AddLogitsDigest(finished.samples(i), &one);
    json["samples"].push_back(one);
  }
  json["server"] = {{"queue_ms", finished.queue_ms()},
                    {"fetch_ms", finished.fetch_ms()},
                    {"prefill_ms", finished.prefill_ms()},
                    {"ttft_ms", finished.ttft_ms()},
                    {"total_ms", finished.total_ms()}};
  if (published) {
    json["published_tokens"] = published->published_tokens();
    json["durable"] = DurabilityText(published->durable());
    if (!published->note().empty()) json["publish_note"] = published->note();
  }
  return json;
}

std::string CacheSentence(const GenerationResult& generation) {
  const v1::Started& started = generation.started;
  std::string sentence =
      started.cached_tokens() == 0
          ? absl::StrCat("computed all ", started.prompt_tokens(), " prompt tokens")
          : absl::StrCat(started.cached_tokens(), " of ", started.prompt_tokens(),
                         " prompt tokens cached (", TierText(started.source_tier()), ")");
  return absl::StrCat(sentence, ", first token after ", MsText(generation.ttft_ms));
}

}  // namespace hearth
