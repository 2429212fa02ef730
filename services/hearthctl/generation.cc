#include "services/hearthctl/generation.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/cli/command_line.h"
#include "services/hearthctl/chat_file.h"
#include "services/rpc/call_metadata.h"
#include "services/rpc/trace_span.h"

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

// Limit for sample numbers in answers; larger numbers are ignored. No worker sends 1,024 samples.
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

// Parses a logit bias such as "5=-1.5". Throws CLI11's error if the text is wrong.
std::pair<uint32_t, float> BiasFrom(const std::string& text) {
  const size_t equals = text.find('=');
  std::pair<uint32_t, float> bias;
  if (equals == text.npos || !absl::SimpleAtoi(text.substr(0, equals), &bias.first) ||
      !absl::SimpleAtof(text.substr(equals + 1), &bias.second)) {
    throw CLI::ValidationError("--logit-bias",
                               "must be ID=BIAS, a token id and a number; got \"" + text + "\"");
  }
  return bias;
}

// Adds a flag. Parsing passes its value, or each of its values, to `set`.
template <typename Message, typename T>
CLI::Option* AddField(CLI::App* command, const char* name, Message* message,
                      void (Message::*set)(T), const char* help) {
  return command->add_option_function<T>(
      name, [=](const T& value) { (message->*set)(value); }, help);
}
template <typename T>
void AddList(CLI::App* command, const char* name, const std::function<void(const T&)>& add,
             const char* help) {
  const auto add_all = [add](const std::vector<T>& values) {
    for (const T& value : values) add(value);
  };
  command->add_option_function<std::vector<T>>(name, add_all, help)->allow_extra_args(false);
}

double MsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

void GenerationFlags::DeclareEnd(CLI::App* command, uint32_t default_max_new_tokens) {
  v1::GenerateRequest* const request = &request_;
  request->set_max_new_tokens(default_max_new_tokens);
  AddField(command, "--max-new-tokens", request, &v1::GenerateRequest::set_max_new_tokens,
           "maximum number of tokens to generate")
      ->default_str(absl::StrCat(default_max_new_tokens));
  const auto add_stop = [request](const std::string& stop) {
    const absl::Status status = CheckUtf8(stop, absl::StrCat("number ", request->stop_size() + 1));
    if (!status.ok()) throw CLI::ValidationError("--stop", std::string(status.message()));
    request->add_stop(stop);
  };
  AddList<std::string>(command, "--stop", add_stop, "stop at this text; may be repeated");
  command->add_flag_callback(
      "--ignore-eos", [request] { request->set_ignore_eos(true); },
      "continue after the model's end of text");
}

void GenerationFlags::Declare(CLI::App* command, uint32_t default_max_new_tokens) {
  using Request = v1::GenerateRequest;
  using Sampling = v1::SamplingParams;
  Request* const request = &request_;
  Sampling* const sampling = request->mutable_sampling();
  const CLI::Validator utf8(
      [](std::string& text) { return std::string(CheckUtf8(text, "the text").message()); }, "");
  DeclareEnd(command, default_max_new_tokens);
  const auto set_schema = [request](const std::string& path) {
    const absl::StatusOr<std::string> schema = ReadTextFile(path);
    absl::Status status = schema.status();
    if (status.ok()) status = CheckNotEmpty(absl::StripAsciiWhitespace(*schema), path);
    if (!status.ok()) {
      throw CLI::ValidationError("--json-schema", std::string(status.message()));
    }
    request->mutable_grammar()->set_json_schema(*schema);
  };
  command->add_option_function<std::string>(
      "--json-schema", set_schema,
      "file with the JSON schema that the answer must obey; - is standard input");
  AddChoice(
      command, "--generation-config", {{"none", 0}, {"auto", 1}},
      [sampling](int choice) { sampling->set_server_defaults(choice == 1); },
      "defaults of temperature, top-k and top-p. auto: the worker's (see hearthctl model); none "
      "(the default): greedy");
  AddField(command, "--temperature", sampling, &Sampling::set_temperature,
           "0 is greedy (the default)");
  AddField(command, "--top-k", sampling, &Sampling::set_top_k,
           "sample from the k most likely tokens; 0 is off");
  AddField(command, "--top-p", sampling, &Sampling::set_top_p,
           "sample from the most likely tokens whose probabilities sum to p; 0 is off");
  AddField(command, "--seed", sampling, &Sampling::set_seed,
           "seed of the sampler; the same seed gives the same answer (default: random)");
  DeclareRules(command);
  DeclareAdapter(command, request->mutable_adapter())->check(utf8);
  AddChoice(
      command, "--cache", kCacheModes,
      [request](int mode) { request->set_cache(static_cast<v1::CacheMode>(mode)); },
      "use of the cache for this request");
  command
      ->add_option("--kv-cache", *request->mutable_kv_cache(),
                   "KV cache strategy (see hearth-worker --kv-cache)")
      ->check(utf8);
  command
      ->add_option("--kv-quantization", *request->mutable_kv_quantization(),
                   "options of the quantized strategy (see hearth-worker --kv-quantization)")
      ->check(utf8);
  AddField(command, "--speculate", request, &Request::set_speculate,
           "tokens to guess from the text and verify in one step; 0 is off");
  AddChoice(
      command, "--durability", kDurabilities,
      [request](int level) { request->set_durability(static_cast<v1::Durability>(level)); },
      "durability of the published prefix (see hearth-store --durability; shared: disk, and in "
      "Redis)");
  DeclareHint(command, &hint_);
  command->add_option_function<uint32_t>(
      "--logprobs",
      [sampling](uint32_t alternatives) {
        sampling->set_report_logprobs(true);
        sampling->set_logprobs(alternatives);
      },
      "report log probabilities of each token and N alternatives");
  command->add_flag_callback(
      "--logits-sha256", [request] { request->set_hash_logits(true); },
      "also report a SHA-256 of the logits of all tokens");
}

void GenerationFlags::DeclareRules(CLI::App* command) {
  using Sampling = v1::SamplingParams;
  Sampling* const sampling = request_.mutable_sampling();
  AddField(command, "--min-p", sampling, &Sampling::set_min_p,
           "exclude tokens less than p times as likely as the most likely token");
  AddField(command, "--repetition-penalty", sampling, &Sampling::set_repetition_penalty,
           "divide the logits of tokens that occur in the prompt or answer; 1 is off");
  AddField(command, "--presence-penalty", sampling, &Sampling::set_presence_penalty,
           "subtract this from the logits of tokens that occur in the answer");
  AddField(command, "--frequency-penalty", sampling, &Sampling::set_frequency_penalty,
           "subtract this from the logits of tokens in the answer, once per occurrence");
  const auto add_bias = [sampling](const std::string& text) {
    const auto [id, bias] = BiasFrom(text);
    (*sampling->mutable_logit_bias())[id] = bias;
  };
  AddList<std::string>(command, "--logit-bias", add_bias,
                       "ID=BIAS: add BIAS to the logit of token ID; may be repeated");
  AddList<uint32_t>(
      command, "--stop-token-id", [sampling](uint32_t id) { sampling->add_stop_token_ids(id); },
      "stop before this token; may be repeated");
  AddList<uint32_t>(
      command, "--bad-token-id", [sampling](uint32_t id) { sampling->add_bad_token_ids(id); },
      "never generate this token; may be repeated");
  AddField(command, "--min-tokens", sampling, &Sampling::set_min_tokens,
           "minimum number of tokens to generate");
}

void GenerationFlags::Apply(v1::GenerateRequest* request) const {
  request->MergeFrom(request_);
  request->set_keep_s(hint_.keep_s);
  request->set_priority(hint_.priority);
}

GenerationResult Generate(v1::Inference::Stub* stub, v1::GenerateRequest request,
                          grpc::ClientContext* context, const GenerationEvents& events,
                          ProgressLine* progress) {
  GenerationResult result;
  request.set_report_progress(progress != nullptr && progress->is_seen());
  result.request_id = NewRequestId();
  SendRequestId(result.request_id, context);
  if (const char* const parent = std::getenv("TRACEPARENT")) {
    const TraceSpan span = NewSpan(parent);
    context->AddMetadata(kTraceparentKey, span.Traceparent());
    result.trace_id = span.trace_id;
  }
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
  Json json{
      {"request_id", request_id}, {"token_ids", samples[0].token_ids}, {"text", samples[0].text}};
  if (!trace_id.empty()) json["trace_id"] = trace_id;
  // Copy fields that are not lists or messages, with their names. The times that the worker
  // measured go into the object "server", because this process measures ttft_ms and total_ms below.
  const auto add_fields = [&json](const google::protobuf::Message& message) {
    const Json fields = MessageJson(message);
    for (const auto& [name, value] : fields.items()) {
      if (absl::EndsWith(name, "_ms")) {
        json["server"][name] = value;
      } else if (value.is_primitive() && !value.is_null()) {
        json[name] = value;
      }
    }
  };
  add_fields(finished);
  add_fields(started);
  RenameField("reason", "finish_reason", &json);
  if (started.has_load()) {
    const v1::Load& load = started.load();
    json["load_decision"] = load.decision();
    if (load.has_load_estimate_ms()) json["load_estimate_ms"] = load.load_estimate_ms();
    if (load.has_compute_estimate_ms()) json["compute_estimate_ms"] = load.compute_estimate_ms();
    if (load.took_ms() > 0) json["load_ms"] = load.took_ms();
    if (!load.source().empty()) json["load_source"] = load.source();
  }
  json["ttft_ms"] = ttft_ms;
  json["total_ms"] = total_ms;
  AddLogprobs(samples[0], &json);
  if (finished.samples_size() > 0) AddLogitsDigest(finished.samples(0), &json);
  for (int i = 0; finished.samples_size() > 1 && i < finished.samples_size(); ++i) {
    const size_t number = static_cast<size_t>(i);
    const GeneratedSample none;
    const GeneratedSample& sample = number < samples.size() ? samples[number] : none;
    Json one{
        {"token_ids", sample.token_ids},
        {"text", sample.text},
        {"finish_reason", EnumText(*v1::FinishReason_descriptor(), finished.samples(i).reason())},
        {"generated_tokens", finished.samples(i).generated_tokens()}};
    AddLogprobs(sample, &one);
    AddLogitsDigest(finished.samples(i), &one);
    json["samples"].push_back(one);
  }
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
