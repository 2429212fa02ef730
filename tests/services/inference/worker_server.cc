#include "tests/services/inference/worker_server.h"

#include <atomic>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/rpc/status_conversion.h"
#include "tests/services/rpc/connected_to.h"
#include "worker/text/tokenizer_loader.h"

namespace hearth {

WorkerServer::Options WorkerServer::Invariant() {
  Options options;
  options.engine.exactness = ExactnessChoice::kInvariant;
  options.engine.memory.pool_bytes = 16 << 20;
  return options;
}

EngineOptions WorkerServer::SmallEngine() {
  EngineOptions options;
  options.exactness = ExactnessChoice::kExact;
  options.chunk_tokens = 16;
  options.threads = 1;
  options.memory.pool_bytes = 0;
  // With these settings, hits and publishes do not depend on the machine's speed.
  options.cache.load = LoadChoice::kAlways;
  options.cache.fetch_budget = options.cache.publish_timeout = absl::Minutes(10);
  return options;
}

WorkerServer::WorkerServer(Options options) : admission_(options.recorder, options.identities) {
  static std::atomic<int> count{0};
  if (options.with_tokenizer) {
    auto tokenizer = LoadTokenizer(HEARTH_TEST_DATA_DIR "/tiny_tokenizer");
    assert(tokenizer.ok() && tokenizer->tokenizer != nullptr);
    tokenizer_ = std::move(tokenizer->tokenizer);
    options.geometry.vocab_size = tokenizer_->size();
  }
  options.engine.model_dir =
      NewTinyCheckpoint(options.geometry, absl::StrCat("worker_server_", ++count));
  auto engine = Engine::Create(options.engine);
  assert(engine.ok());
  engine_ = *std::move(engine);
  engine_->SetCache(options.cache);
  GeneratorOptions generation;
  generation.tokenizer = tokenizer_.get();
  if (tokenizer_ == nullptr) generation.why_no_tokenizer = "DIR/tokenizer.model has a normalizer";
  generation.why_no_chats = options.why_no_chats;
  if (!options.chat_template.empty()) {
    auto made = ModelTemplate::Make("DIR/chat_template.jinja", options.chat_template,
                                    {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}}, *tokenizer_);
    assert(made.ok());
    template_ = *std::move(made);
    generation.chat_template = template_.get();
  }
  generation.progress_pause = options.progress_pause;
  generation.plan_wait = options.plan_wait;
  generation.explain = options.explain;
  generator_ = std::make_unique<Generator>(engine_.get(), std::move(generation));
  InferenceOptions settings;
  settings.store = options.store;
  settings.store_access.prefix = "store-";
  settings.model_dir = options.engine.model_dir;
  settings.version = "test";
  admission_.SetPatience(options.patience);
  service_ = std::make_unique<InferenceService>(generator_.get(), &admission_, std::move(settings));
  auto runner =
      ServerRunner::Start("127.0.0.1:0", {{"hearth.v1.Inference", service_.get()}}, &admission_);
  assert(runner.ok());
  runner_ = *std::move(runner);
  channel_ = ConnectedTo(runner_->address());
  stub_ = v1::Inference::NewStub(channel_);
}

WorkerServer::~WorkerServer() {
  runner_.reset();  // first, because it uses the other members
  generator_.reset();
  engine_.reset();
}

Generation WorkerServer::Generate(const v1::GenerateRequest& request,
                                  grpc::ClientContext* context) {
  grpc::ClientContext own;
  if (context == nullptr) context = &own;
  Generation result;
  auto reader = stub_->Generate(context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    result.messages.push_back(message);
    if (message.has_started()) result.started = message.started();
    if (message.has_finished()) result.finished = message.finished();
    if (message.has_published()) result.published = message.published();
    if (!message.has_token()) continue;
    result.text += message.token().text();
    for (uint32_t id : message.token().ids()) result.ids.push_back(id);
  }
  result.status = reader->Finish();
  const auto& trailers = context->GetServerTrailingMetadata();
  const auto hint = trailers.find(kRetryAfterMsKey);
  if (hint != trailers.end()) {
    result.retry_after_ms.assign(hint->second.data(), hint->second.size());
  }
  return result;
}

grpc::Status Prefill(v1::Inference::Stub* stub, const v1::PrefillRequest& request,
                     v1::PrefillResponse* response, std::vector<v1::PrefillResponse>* progress) {
  grpc::ClientContext context;
  const auto reader = stub->Prefill(&context, request);
  v1::PrefillResponse message;
  while (reader->Read(&message)) {
    if (!message.has_progress()) {
      *response = message;
    } else if (progress != nullptr) {
      progress->push_back(message);
    }
  }
  return reader->Finish();
}

v1::GenerateRequest IdsRequest(const std::vector<uint32_t>& ids, uint32_t max_new_tokens) {
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.set_max_new_tokens(max_new_tokens);
  request.set_ignore_eos(true);
  return request;
}

v1::GenerateRequest TextRequest(const std::string& text, uint32_t max_new_tokens) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(text);
  request.set_max_new_tokens(max_new_tokens);
  request.set_ignore_eos(true);
  return request;
}

}  // namespace hearth
