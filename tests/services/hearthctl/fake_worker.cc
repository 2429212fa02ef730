#include "tests/services/hearthctl/fake_worker.h"

#include "proto/restore_rule.h"
#include "services/rpc/proto_conversion.h"
#include "tests/proto/tiny_snapshot.h"

namespace hearth {
namespace {

std::string Rendered(const v1::PromptInput& prompt) {
  if (prompt.has_text()) return prompt.text();
  std::string text;
  if (prompt.has_token_ids()) {
    for (uint32_t id : prompt.token_ids().ids()) text.push_back(static_cast<char>(id));
    return text;
  }
  for (const v1::ChatMessage& message : prompt.chat().messages()) {
    text += message.role() + ":";
    for (const v1::ContentPart& part : message.parts()) text += part.text();
    text += "\n";
  }
  return text;
}

std::vector<uint32_t> Cuts(const v1::PromptInput& prompt) {
  return {prompt.breakpoints().begin(), prompt.breakpoints().end()};
}

void FillFinished(const v1::GenerateRequest& request, v1::Finished* finished) {
  for (uint32_t sample = 0; sample < request.n(); ++sample) {
    v1::SampleEnd* end = finished->add_samples();
    end->set_reason(sample == 0 ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP);
    end->set_generated_tokens(sample == 0 ? 2 : 1);
    if (request.hash_logits()) end->set_logits_sha256(std::string(32, static_cast<char>(sample)));
  }
  if (request.beams() > 1) finished->mutable_samples(0)->set_beam_score(-0.25);
  finished->set_reason(v1::FINISH_REASON_LENGTH);
  finished->set_generated_tokens(2);
  finished->set_computed_tokens(7);
  finished->set_ttft_ms(25);
  finished->set_kv_bytes(4096);
  finished->set_kv_cache(request.kv_cache() + request.kv_quantization());
  finished->set_exactness("invariant");
  finished->set_decode_steps(21);
  finished->set_drafted_tokens(request.has_speculate() ? request.speculate() : 99);
  finished->set_accepted_tokens(5);
  finished->set_first_logits_sha256(std::string(32, '\x1f'));
}

}  // namespace

FakeWorker::FakeWorker() {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  address_ = "127.0.0.1:" + std::to_string(port);
}

FakeWorker::~FakeWorker() { server_->Shutdown(); }

std::string FakeWorker::RestorePointId(uint32_t boundary) {
  return std::string(32, static_cast<char>(boundary));
}

grpc::Status FakeWorker::Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                                  grpc::ServerWriter<v1::GenerateResponse>* writer) {
  const std::string prompt = Rendered(request->prompt());
  bool known = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure.ok()) return failure;
    generated.push_back(*request);
    deadlines.push_back(absl::FromChrono(context->deadline()));
    known = stored.count(prompt) > 0;
  }
  v1::GenerateResponse response;
  response.mutable_started()->set_prompt_tokens(static_cast<uint32_t>(prompt.size()));
  if (known) {
    response.mutable_started()->set_cached_tokens(16);
    response.mutable_started()->set_source_tier(v1::TIER_DISK);
    response.mutable_started()->mutable_load()->set_decision("load");
    response.mutable_started()->mutable_load()->set_load_estimate_ms(12);
  }
  writer->Write(response);
  if (request->report_progress()) {
    v1::GenerateResponse half;
    half.mutable_progress()->set_ready_tokens(static_cast<uint32_t>(prompt.size() / 2));
    writer->Write(half);
  }
  for (const std::string& word : {first_word, std::string(" there")}) {
    response.mutable_token()->Clear();
    response.mutable_token()->add_ids(static_cast<uint8_t>(word[0]));
    response.mutable_token()->set_text(word);
    if (request->sampling().report_logprobs()) {
      response.mutable_token()->add_logprobs()->set_logprob(-0.5F);
    }
    writer->Write(response);
    if (word != first_word) continue;
    if (between_words) between_words();
    if (!failure_between_words.ok()) return failure_between_words;
  }
  for (uint32_t sample = 1; sample < request->n(); ++sample) {
    response.mutable_token()->Clear();
    response.mutable_token()->set_sample(sample);
    response.mutable_token()->add_ids(sample);
    response.mutable_token()->set_text("Or else");
    writer->Write(response);
  }
  FillFinished(*request, response.mutable_finished());
  writer->Write(response);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stored.insert(prompt);
  }
  if (request->wait_published()) {
    response.mutable_published()->set_published_tokens(32);
    response.mutable_published()->set_durable(v1::DURABILITY_DISK);
    writer->Write(response);
  }
  return grpc::Status::OK;
}

grpc::Status FakeWorker::Prefill(grpc::ServerContext*, const v1::PrefillRequest* request,
                                 grpc::ServerWriter<v1::PrefillResponse>* writer) {
  v1::PrefillResponse answer;
  v1::PrefillResponse* const response = &answer;
  if (!prefill_failure.ok()) return prefill_failure;
  const std::string prompt = Rendered(request->prompt());
  if (!failure.ok()) return failure;
  prefilled.push_back(*request);
  response->set_prompt_tokens(static_cast<uint32_t>(prompt.size()));
  response->set_computed_tokens(static_cast<uint32_t>(prompt.size()));
  if (store_works) {
    stored.insert(prompt);
  } else {
    response->mutable_published()->set_note("store unreachable");
  }
  if (request->report_progress()) {
    v1::PrefillResponse begun;
    begun.set_prompt_tokens(answer.prompt_tokens());
    begun.mutable_progress()->set_ready_tokens(1);
    writer->Write(begun);
  }
  writer->Write(answer);
  return grpc::Status::OK;
}

grpc::Status FakeWorker::Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                                  v1::TokenizeResponse* response) {
  if (!failure.ok()) return failure;
  response->set_text(Rendered(request->prompt()));
  for (unsigned char c : response->text()) response->add_token_ids(c);
  for (uint32_t cut : Cuts(request->prompt())) response->add_breakpoints(cut);
  const std::lock_guard<std::mutex> lock(mutex_);
  tokenized.push_back(*request);
  return grpc::Status::OK;
}

grpc::Status FakeWorker::GetModel(grpc::ServerContext*, const v1::GetModelRequest*,
                                  v1::GetModelResponse* response) {
  if (!failure.ok() && !answers_get_model) return failure;
  response->set_chunk_tokens(kChunkTokens);
  response->set_context_tokens(1024);
  response->set_has_tokenizer(true);
  if (field_dtype.empty()) {
    ToProto(TinyFingerprint(), response->mutable_fingerprint());
  } else {
    std::vector<FingerprintField> fields = TinyFields();
    FingerprintField dtype;
    dtype.name = "dtype";
    dtype.value = field_dtype;
    fields.push_back(dtype);
    ToProto(Fingerprint::Create(fields).value(), response->mutable_fingerprint());
  }
  response->set_model_dir(model_dir);
  response->set_unreachable_store(unreachable_store);
  return grpc::Status::OK;
}

grpc::Status FakeWorker::Explain(grpc::ServerContext*, const v1::ExplainInputRequest* request,
                                 v1::ExplainResponse* response) {
  if (!failure.ok()) return failure;
  if (!explained.summary().empty()) {
    *response = explained;
    return grpc::Status::OK;
  }
  const std::string prompt = Rendered(request->prompt());
  const bool known = stored.count(prompt) > 0;
  response->set_summary(known ? "all of it" : "nothing");
  response->set_omitted_boundaries(known ? 0 : 7);
  for (uint32_t boundary : RestoreCandidates(static_cast<uint32_t>(prompt.size()),
                                             Cuts(request->prompt()), kChunkTokens)) {
    v1::BoundaryInfo* info = response->add_boundaries();
    info->set_boundary(boundary);
    info->set_usable(known);
    if (!known) info->set_reason("never stored");
    if (known && without_restore_point.count(boundary) == 0) {
      info->set_restore_point_id(RestorePointId(boundary));
    }
  }
  return grpc::Status::OK;
}

}  // namespace hearth
